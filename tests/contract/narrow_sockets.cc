// Under SLUICE_CONTRACT_FAULTS=delayed the kernel itself is the fault: where the library
// widens a send buffer (tcp/socket.cc, l2/socket.cc), it gets little, so that writes are
// taken in part, reads find part of a message, and frames find no room.
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "tests/contract/pair.h"

namespace sluice::test {
namespace {
std::atomic<uint64_t> narrowed{0};
// The kernel doubles it (socket(7)). With less than two segments of the loopback device
// (64 KiB each) it waits 40 ms for each delayed acknowledgement, with a receive buffer below
// one, 200 ms for each window.
constexpr int kNarrowBytes = 64 * 1024;

int really_set(int fd, int level, int name, const void* value, socklen_t length) {
  return static_cast<int>(::syscall(SYS_setsockopt, fd, level, name, value, length));
}
}  // namespace

uint64_t sockets_narrowed() { return narrowed.load(); }

}  // namespace sluice::test

// In place of libc's, for the whole program.
extern "C" int setsockopt(int fd, int level, int name, const void* value,
                          socklen_t length) noexcept {
  using namespace sluice::test;
  bool widens = level == SOL_SOCKET && (name == SO_SNDBUF || name == SO_SNDBUFFORCE);
  if (!widens || !faults_under_test()) return really_set(fd, level, name, value, length);
  narrowed.fetch_add(1);
  return really_set(fd, level, SO_SNDBUF, &kNarrowBytes, sizeof(kNarrowBytes));
}
