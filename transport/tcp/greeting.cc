#include <sluice/tcp/greeting.h>

#include <errno.h>
#include <sys/epoll.h>

#include <array>
#include <cstring>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/runtime/identity.h>
#include <sluice/tcp/resolve.h>

namespace sluice::tcp {
namespace {

constexpr const char* kOrigin = "tcp/greeting";

Counter greetings_failed("tcp.greetings_failed");

Status reading_error(int os_error) {
  return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                "the connection broke during the greeting", os_error);
}

// Waits for events of one descriptor while the rest of the context goes on. Edges: an
// incomplete message is left in the socket and must not wake us again by itself.
class EventWait final : public EventHandler {
 public:
  EventWait(ContextCore& context, int fd) : context_(context), fd_(fd) {}
  ~EventWait() {
    if (watched_) context_.unwatch(fd_, this);
  }
  Status start(uint32_t events) {
    SLUICE_RETURN_IF_ERROR(context_.watch(fd_, events | EPOLLET, this));
    watched_ = true;
    return Status();
  }
  Status wait(Instant deadline) {
    SLUICE_RETURN_IF_ERROR(context_.wait_until([this] { return fired_; }, deadline));
    fired_ = false;
    return Status();
  }
  // The peer will send nothing more.
  bool hung_up() const { return hung_up_; }
  void on_event(uint32_t epoll_events) noexcept override {
    fired_ = true;
    hung_up_ = hung_up_ || (epoll_events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
  }

 private:
  ContextCore& context_;
  int fd_;
  bool watched_ = false;
  bool fired_ = false;
  bool hung_up_ = false;
};

Status connect_error(const Address& address, const SocketAddress& to, int os_error) {
  std::string who = address.to_string() + " (" + to.to_string() + ")";
  if (os_error == ECONNREFUSED) {
    return Status(Code::kUnreachable, Scope::kOperation, kOrigin,
                  "nobody listens at " + who + "; start the server or check the port", os_error);
  }
  return Status(Code::kUnreachable, Scope::kOperation, kOrigin,
                "cannot connect to " + who + "; check the address, the route and the firewall",
                os_error);
}

Status connect_timeout(const Address& address, const SocketAddress& to) {
  return Status(Code::kTimedOut, Scope::kOperation, kOrigin,
                "no answer from " + address.to_string() + " (" + to.to_string() +
                    ") before the deadline; check that it runs and that no firewall drops packets");
}

Result<Descriptor> connect_one(ContextCore& context, const Address& address,
                               const SocketAddress& to, Instant deadline) {
  SLUICE_TRY(Descriptor fd, open_stream_socket(to.family()));
  SLUICE_RETURN_IF_ERROR(set_connection_options(fd.value()));
  if (::connect(fd.value(), to.get(), to.length) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return connect_error(address, to, errno);
    EventWait wait(context, fd.value());
    SLUICE_RETURN_IF_ERROR(wait.start(EPOLLOUT));
    Status status = wait.wait(deadline);
    if (status == Code::kTimedOut) return connect_timeout(address, to);
    SLUICE_RETURN_IF_ERROR(status);
    int error = 0;
    socklen_t length = sizeof(error);
    ::getsockopt(fd.value(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return connect_error(address, to, error);
  }
  fault_point("tcp.connected");
  return fd;
}

// The addresses of a name share what is left of the time, so that one that swallows
// packets does not use up the turn of the next.
Result<Descriptor> connect_any(ContextCore& context, const Address& address, Instant deadline) {
  SLUICE_TRY(std::vector<SocketAddress> found, resolve(address));
  Status last;
  for (size_t i = 0; i < found.size(); ++i) {
    Instant now = context.refresh_now();
    Instant until = deadline;
    if (deadline != kNever && deadline > now)
      until = now + (deadline - now) / static_cast<int64_t>(found.size() - i);
    auto fd = connect_one(context, address, found[i], until);
    if (fd.ok()) return fd;
    last = fd.status();
    // A missing descriptor is ours, not the address's.
    if (last == Code::kNoMemory) break;
  }
  return last;
}

Status peer_refused(const Address& address, Code code) {
  std::string who = address.to_string() + " refused the connection: ";
  const char* why =
      code == Code::kUnsupported    ? "it does not speak our protocol version or this path"
      : code == Code::kTryAgain     ? "it has as many connections as it takes, or greets too many "
                                      "peers already; try again later"
      : code == Code::kAccessDenied ? "its program does not accept us (ListenOptions::accept there)"
      : code == Code::kCorrupt      ? "it did not understand our HELLO"
      : code == Code::kTimedOut     ? "we were too slow to greet"
                                    : "no reason that we know";
  if (code == Code::kOk || code == Code::kCorrupt) code = Code::kUnreachable;
  return Status(code, Scope::kOperation, kOrigin, who + why);
}

Status decode_answer(const Address& address, const Glimpse& glimpse, wire::Hello& peer) {
  if (glimpse.common.type == wire::MessageType::kBye) {
    wire::Bye bye;
    SLUICE_RETURN_IF_ERROR(wire::decode(glimpse.header, bye));
    return peer_refused(address, bye.code);
  }
  if (glimpse.common.type != wire::MessageType::kHello) {
    return Status(Code::kCorrupt, Scope::kOperation, kOrigin,
                  address.to_string() + " did not answer with HELLO");
  }
  return wire::decode(glimpse.header, peer);
}

Status wait_for_answer(ContextCore& context, const Address& address, int fd, wire::Hello& peer,
                       Instant deadline) {
  std::array<std::byte, kMaxGreetingBytes> scratch;
  EventWait wait(context, fd);
  SLUICE_RETURN_IF_ERROR(wait.start(EPOLLIN | EPOLLRDHUP));
  while (true) {
    Status waited = wait.wait(deadline);
    if (waited == Code::kTimedOut) {
      return Status(Code::kTimedOut, Scope::kOperation, kOrigin,
                    address.to_string() +
                        " accepted the connection but sent no HELLO before the deadline; "
                        "check that it is a sluice server and that it calls progress()");
    }
    SLUICE_RETURN_IF_ERROR(waited);
    Glimpse glimpse = take_message(fd, scratch);
    if (glimpse.state == Glimpse::State::kIncomplete) {
      if (!wait.hung_up()) continue;
      glimpse.state = Glimpse::State::kEnded;
      glimpse.why = cut_off();
    }
    if (glimpse.state == Glimpse::State::kEnded) {
      return Status(glimpse.why.code(), Scope::kOperation, kOrigin,
                    address.to_string() + " did not greet us: " + std::string(glimpse.why.detail()),
                    glimpse.why.os_error());
    }
    return decode_answer(address, glimpse, peer);
  }
}

Result<Greeting> greet_once(ContextCore& context, const Address& address, const wire::Hello& said,
                            Instant deadline) {
  SLUICE_TRY(Descriptor fd, connect_any(context, address, deadline));
  const wire::Hello ours = hello_towards(fd.value(), said);
  std::array<std::byte, wire::kMaxHeaderBytes> out;
  size_t length = wire::encode(ours, out);
  if (!send_all_now(fd.value(), out.data(), length)) return reading_error(errno);
  fault_point("tcp.hello_sent");
  wire::Hello peer;
  Status status = wait_for_answer(context, address, fd.value(), peer, deadline);
  if (!status.ok()) {
    if (status == Code::kCorrupt) refuse(std::move(fd), Code::kCorrupt);
    return status;
  }
  fault_point("tcp.hello_received");
  auto version = wire::negotiate(ours, peer);
  if (!version.ok()) {
    refuse(std::move(fd), Code::kUnsupported);
    return version.status();
  }
  return Greeting(std::move(fd), ours, peer, *version);
}

}  // namespace

wire::Hello hello_towards(int fd, wire::Hello ours) {
  if (!peer_is_local(fd)) hide_identity(ours);
  return ours;
}

Glimpse take_message(int fd, std::span<std::byte> scratch) {
  Glimpse glimpse;
  auto end = [&](Status why) {
    glimpse.state = Glimpse::State::kEnded;
    glimpse.why = std::move(why);
    return glimpse;
  };
  ssize_t got;
  do {
    got = ::recv(fd, scratch.data(), scratch.size(), MSG_PEEK | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno == EAGAIN ? glimpse : end(reading_error(errno));
  auto seen = scratch.first(static_cast<size_t>(got));
  if (seen.size() < wire::kHeaderBytes) {
    if (got > 0) return glimpse;
    return end(Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, "it closed the connection"));
  }
  auto common = wire::decode_header(seen.first(wire::kHeaderBytes));
  if (!common.ok()) return end(common.status());
  if (common->payload_bytes != 0) {
    return end(Status(Code::kCorrupt, Scope::kEndpoint, kOrigin,
                      "a message of the greeting has a payload"));
  }
  if (seen.size() < common->header_bytes) return glimpse;
  // What was peeked is there: the read is complete.
  got = ::recv(fd, scratch.data(), common->header_bytes, MSG_DONTWAIT);
  if (got != common->header_bytes) return end(reading_error(got < 0 ? errno : 0));
  glimpse.state = Glimpse::State::kComplete;
  glimpse.common = *common;
  glimpse.header = scratch.first(common->header_bytes);
  return glimpse;
}

Status cut_off() {
  return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                "it closed the connection inside a message");
}

Result<Greeting> greet(ContextCore& context, const Address& address, const wire::Hello& ours,
                       Instant deadline) {
  auto result = greet_once(context, address, ours, deadline);
  if (!result.ok()) greetings_failed.add();
  return result;
}

Status choose(Greeting& greeting, Path path) {
  std::array<std::byte, wire::kMaxHeaderBytes> out;
  size_t length =
      wire::encode(wire::Done{.id = static_cast<uint64_t>(path), .code = Code::kOk}, out);
  if (!send_all_now(greeting.fd(), out.data(), length)) {
    return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                  "the peer closed the connection during the greeting", errno);
  }
  greeting.chosen = path;
  fault_point("tcp.chosen");
  return Status();
}

void refuse(Descriptor fd, Code code) {
  std::array<std::byte, wire::kMaxHeaderBytes> out;
  size_t length = wire::encode(wire::Bye{.code = code}, out);
  (void)send_all_now(fd.value(), out.data(), length);
  close_gently(std::move(fd));
}

}  // namespace sluice::tcp
