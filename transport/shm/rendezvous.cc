#include <sluice/shm/rendezvous.h>

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/runtime/awaits.h>
#include <sluice/runtime/call_pauses.h>
#include <sluice/runtime/event_wait.h>

#include "transport/shm/handshake.h"

namespace sluice::shm {
namespace {

constexpr const char* kOrigin = "shm/rendezvous";

Counter repeated("shm.meetings_repeated");

Status failure(Code code, const std::string& why, int error = 0) {
  return Status(code, Scope::kEndpoint, kOrigin, why, error);
}

// A full backlog answers EAGAIN, and nothing tells when there is room: the listener is asked again.
constexpr Duration kBacklogRetry = std::chrono::milliseconds(1);

Task<Status> call(ContextCore& context, int fd, const std::string& name, Instant deadline) {
  socklen_t length;
  const sockaddr_un address = abstract_address(name, length);
  while (::connect(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      co_return failure(Code::kUnreachable,
                        "nobody listens at " + shown(name) +
                            " in this network namespace; start the listener first",
                        errno);
    }
    const Instant now = context.refresh_now();
    if (now >= deadline)
      co_return failure(Code::kTimedOut,
                        "the listener at " + shown(name) +
                            " accepts nobody; check that its program calls progress()");
    const Instant again = std::min(deadline, after(now, kBacklogRetry));
    Status waited = co_await context.awaits().until([] { return false; }, again);
    if (waited != Code::kTimedOut) co_return waited;
  }
  co_return Status();
}

// Waits for the listener's HELLO.
Task<Result<Greeting>> await_hello(ContextCore& context, int fd, const wire::Hello& ours,
                                   const std::string& name, Instant deadline) {
  EventWait event(context, fd);
  SLUICE_CO_RETURN_IF_ERROR(event.start(EPOLLIN | EPOLLRDHUP));
  while (true) {
    SLUICE_CO_TRY(std::optional<Greeting> greeting, receive_hello(fd, ours));
    if (greeting) co_return std::move(*greeting);
    Status waited = co_await context.awaits().until([&] { return event.take_event(); }, deadline);
    if (waited == Code::kTimedOut)
      co_return failure(Code::kTimedOut,
                        "the listener at " + shown(name) +
                            " does not answer; check that its program calls progress()");
    SLUICE_CO_RETURN_IF_ERROR(waited);
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

namespace {

Task<Result<Meeting>> meet_once(ContextCore& context, const std::string& name,
                                const wire::Hello& ours, Instant deadline) {
  Meeting meeting;
  meeting.ours = ours;
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    co_return failure(Code::kNoMemory, "no descriptor for a socket; raise ulimit -n", errno);
  meeting.parts.socket = std::make_shared<Socket>(fd);
  // Made first: HELLO follows at once, before the listener takes us for one that says nothing.
  SLUICE_CO_TRY(meeting.parts.own, OwnRegion::create(ours.incarnation));
  SLUICE_CO_RETURN_IF_ERROR(co_await call(context, fd, name, deadline));
  SLUICE_CO_TRY(meeting.user, check_peer(fd));
  meeting.parts.account = std::make_shared<ConnectionAccount>(
      context.peer_accounts().open(PeerIdentity::of_user(meeting.user.uid)));
  fault_point("shm.connected");
  Status said = send_hello(fd, ours, meeting.parts.own->fd());
  if (!said.ok()) {
    // It may have refused us before it has read anything, and its BYE says why.
    Result<std::optional<Greeting>> answer = receive_hello(fd, ours);
    co_return answer.ok() ? said : answer.status();
  }
  fault_point("shm.hello_sent");
  SLUICE_CO_TRY(Greeting greeting, co_await await_hello(context, fd, ours, name, deadline));
  meeting.peer = greeting.hello;
  meeting.parts.peer = std::move(greeting.region);
  if (meeting.peer.token != ours.token)
    co_return failure(Code::kCorrupt, "the peer did not echo the token");
  fault_point("shm.hello_received");
  meeting.parts.peer_arena_bytes = meeting.peer.arena_bytes;
  meeting.parts.local_name = "pid " + std::to_string(::getpid());
  meeting.parts.peer_name = "pid " + std::to_string(meeting.peer.pid);
  co_return std::move(meeting);
}

}  // namespace

Task<Result<Meeting>> meet(ContextCore& context, std::string name, wire::Hello ours,
                           Instant deadline, Instant last_call) {
  for (CallPauses pauses;;) {
    Result<Meeting> meeting = co_await meet_once(context, name, ours, deadline);
    const Instant again = pauses.next(context.refresh_now());
    // kTimedOut before the deadline: the listener said so.
    if (meeting.code() != Code::kTimedOut || again >= std::min(deadline, last_call))
      co_return std::move(meeting);
    repeated.add();
    Status waited = co_await context.awaits().until([] { return false; }, again);
    if (waited != Code::kTimedOut) co_return waited;
  }
}

}  // namespace sluice::shm
