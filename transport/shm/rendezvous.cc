#include <sluice/shm/rendezvous.h>

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include <sluice/base/fault_point.h>

#include "transport/shm/handshake.h"

namespace sluice::shm {
namespace {

constexpr const char* kOrigin = "shm/rendezvous";

Status failure(Code code, const std::string& why, int error = 0) {
  return Status(code, Scope::kEndpoint, kOrigin, why, error);
}

// Waits for the listener's HELLO.
Result<Greeting> await_hello(ContextCore& context, int fd, const wire::Hello& ours,
                             const std::string& name, Instant deadline) {
  while (true) {
    SLUICE_TRY(std::optional<Greeting> greeting, receive_hello(fd, ours));
    if (greeting) return std::move(*greeting);
    if (context.refresh_now() >= deadline)
      return failure(Code::kTimedOut, "the listener at " + shown(name) + " does not answer");
    // A peer in our own context answers from this very progress().
    context.progress();
  }
}

}  // namespace

std::string socket_name(const wire::Uuid& rendezvous) {
  std::string name = "sluice/";
  char hex[3];
  for (std::byte b : rendezvous.bytes) {
    std::snprintf(hex, sizeof(hex), "%02x", static_cast<unsigned>(b));
    name += hex;
  }
  return name;
}

std::string socket_name(std::string_view name) { return std::string(kNamed) + std::string(name); }

Result<Meeting> meet(ContextCore& context, const std::string& name, const wire::Hello& ours,
                     Instant deadline) {
  Meeting meeting;
  meeting.ours = ours;
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return failure(Code::kNoMemory, "no descriptor for a socket; raise ulimit -n", errno);
  meeting.parts.socket = std::make_shared<Socket>(fd);
  socklen_t length;
  sockaddr_un address = abstract_address(name, length);
  // A full backlog answers EAGAIN: the listener is behind, not gone.
  while (::connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      return failure(Code::kUnreachable,
                     "nobody listens at " + shown(name) +
                         " in this network namespace; start the listener first",
                     errno);
    }
    if (context.refresh_now() >= deadline)
      return failure(Code::kTimedOut, "the listener at " + shown(name) + " accepts nobody");
    context.progress();
  }
  SLUICE_TRY(meeting.user, check_peer(fd));
  meeting.parts.account = std::make_shared<ConnectionAccount>(
      context.peer_accounts().open(PeerIdentity::of_user(meeting.user.uid)));
  SLUICE_TRY(meeting.parts.own, OwnRegion::create(ours.incarnation));
  fault_point("shm.connected");
  SLUICE_RETURN_IF_ERROR(send_hello(fd, ours, meeting.parts.own->fd()));
  fault_point("shm.hello_sent");
  SLUICE_TRY(Greeting greeting, await_hello(context, fd, ours, name, deadline));
  meeting.peer = greeting.hello;
  meeting.parts.peer = std::move(greeting.region);
  if (meeting.peer.token != ours.token)
    return failure(Code::kCorrupt, "the peer did not echo the token");
  fault_point("shm.hello_received");
  meeting.parts.peer_arena_bytes = meeting.peer.arena_bytes;
  meeting.parts.local_name = "pid " + std::to_string(::getpid());
  meeting.parts.peer_name = "pid " + std::to_string(meeting.peer.pid);
  return meeting;
}

}  // namespace sluice::shm
