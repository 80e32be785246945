// No system call on shm while both sides spin: the kernel kills whoever makes one. The one
// exception is the context's look at its file descriptors, so that a peer's end is noticed:
// an epoll_wait() that does not wait, at most once in kLook and counted here.
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "tests/proof/ping_pong.h"
#include "tests/support/fresh_name.h"

namespace {
uint64_t looks = 0;
}

// Takes the place of libc's: counted, and made in the one form that the filter lets through.
extern "C" int epoll_wait(int fd, epoll_event* events, int most, int timeout_ms) {
  ++looks;
  return static_cast<int>(::syscall(SYS_epoll_pwait, fd, events, most, timeout_ms, nullptr, 0));
}

namespace sluice::test {
namespace {

constexpr int kRounds = 10'000;
// Between two looks of a context at its descriptors, while it spins.
constexpr Duration kLook = std::chrono::microseconds(20);
constexpr uint64_t kContexts = 2;
// Exit codes of the process under the filter.
enum { kFine = 0, kNotReady = 2, kNotWarm, kNoFilter, kRoundFailed, kNeverLooked, kLooksTooOften };

// From here on only exit_group(2) and looks that do not wait; everything else is SIGSYS.
bool forbid_system_calls() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[3])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  sock_fprog filter{.len = sizeof(program) / sizeof(program[0]), .filter = program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// Runs `round` so many times in a process that may not call the kernel; its wait status.
template <typename Round>
int under_filter(Round&& round) {
  pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ContextOptions options{
        .arena = {},
        .arena_options = {.limit_bytes = size_t{64} << 20, .first_extent_bytes = size_t{8} << 20},
        .waiting = Waiting::kSpin};
    auto* pair = new PingPong(fresh_name("shm:filter"), options);
    if (!pair->ready()) ::_exit(kNotReady);
    for (int i = 0; i < 300; ++i) {
      if (!round(*pair)) ::_exit(kNotWarm);
    }
    if (!forbid_system_calls()) ::_exit(kNoFilter);
    looks = 0;
    Instant start = now();
    // Long enough for some looks, however fast the machine.
    for (int i = 0; i < kRounds || now() < after(start, 100 * kLook); ++i) {
      if (!round(*pair)) ::_exit(kRoundFailed);
    }
    uint64_t most = kContexts * (static_cast<uint64_t>((now() - start) / kLook) + 1);
    if (looks == 0) ::_exit(kNeverLooked);
    ::_exit(looks <= most ? kFine : kLooksTooOften);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

TEST_CASE("the filter kills who calls the kernel", "[proof]") {
  int status = under_filter([calls = 0](PingPong& pair) mutable {
    if (++calls == 5000) (void)::getppid();
    return pair.message_round(64);
  });
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGSYS);
}

TEST_CASE("shm: ten thousand messages there and back make no system call", "[proof]") {
  CHECK(under_filter([](PingPong& pair) { return pair.message_round(64); }) == kFine);
  CHECK(under_filter([](PingPong& pair) { return pair.message_round(4096); }) == kFine);
}

TEST_CASE("shm: ten thousand tensors handed over and given back make no system call", "[proof]") {
  CHECK(under_filter([](PingPong& pair) { return pair.tensor_round(); }) == kFine);
}

TEST_CASE("shm: tensors fetched into memory make no system call", "[proof]") {
  CHECK(under_filter([](PingPong& pair) { return pair.placed_round(); }) == kFine);
}

}  // namespace
}  // namespace sluice::test
