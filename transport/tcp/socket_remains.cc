#include <sluice/tcp/socket_remains.h>

#include <sys/socket.h>

#include <chrono>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/tcp/socket.h>

namespace sluice::tcp {
namespace {

// Longer than the kernel of a peer that lives says nothing.
constexpr Duration kMostTime = kUnpluggedAfter + std::chrono::seconds(1);
constexpr Duration kBetweenLooks = std::chrono::milliseconds(5);

Counter abandoned("tcp.zerocopy_abandoned");

// connect(2): AF_UNSPEC dissolves the association. TCP then resets it and drops its send queue.
void abort_connection(int fd) {
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  (void)::connect(fd, &nobody, sizeof(nobody));
}

}  // namespace

SocketRemains::~SocketRemains() {
  for (Socket& socket : sockets) {
    abandoned.add();
    abort_connection(socket.fd.value());
  }
}

void RemainsList::add(std::unique_ptr<SocketRemains> remains, Instant now) {
  remains->until = after(now, kMostTime);
  next_look_ = now;
  list_.push_back(std::move(remains));
}

size_t RemainsList::look(Instant now) {
  auto done = [now](const std::unique_ptr<SocketRemains>& remains) {
    std::erase_if(remains->sockets, [](SocketRemains::Socket& socket) {
      socket.loans->collect(socket.fd.value());
      if (socket.loans->any_out()) return false;
      close_gently(std::move(socket.fd));
      return true;
    });
    return remains->sockets.empty() || now >= remains->until;
  };
  const size_t given_back = std::erase_if(list_, done);
  next_look_ = list_.empty() ? kNever : after(now, kBetweenLooks);
  return given_back;
}

}  // namespace sluice::tcp
