#include <sluice/tcp/greeting.h>

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>

#include <array>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/proto/bye.h>
#include <sluice/runtime/call_pauses.h>
#include <sluice/runtime/event_wait.h>
#include <sluice/runtime/identity.h>
#include <sluice/runtime/names.h>

namespace sluice::tcp {
namespace {

constexpr const char* kOrigin = "tcp/greeting";

// It may end us while our HELLO is under way; then its kernel resets the connection without a word.
// Others reset connections for reasons of their own: so often, and no more.
constexpr int kMostResets = 5;

Counter greetings_failed("tcp.greetings_failed");
Counter greetings_repeated("tcp.greetings_repeated");

Status reading_error(int os_error) {
  return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                "the connection broke during the greeting; connect again", os_error);
}

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
  return Status(
      Code::kTimedOut, Scope::kOperation, kOrigin,
      "no answer from " + address.to_string() + " (" + to.to_string() +
          ") before the deadline; check that it runs, that it accepts its peers and that no "
          "firewall drops packets");
}

Task<Result<Descriptor>> connect_one(Awaits& awaits, const Address& address,
                                     const SocketAddress& to, Instant deadline) {
  SLUICE_CO_TRY(Descriptor fd, open_stream_socket(to.family()));
  SLUICE_CO_RETURN_IF_ERROR(set_connection_options(fd.value()));
  if (::connect(fd.value(), to.get(), to.length) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) co_return connect_error(address, to, errno);
    // Within a machine it is done by now. HELLO follows at once, before the listener takes us for
    // one that says nothing.
    pollfd now{.fd = fd.value(), .events = POLLOUT, .revents = 0};
    if (::poll(&now, 1, 0) <= 0) {
      EventWait wait(awaits.context(), fd.value());
      SLUICE_CO_RETURN_IF_ERROR(wait.start(EPOLLOUT));
      Status status = co_await awaits.until([&wait] { return wait.take_event(); }, deadline);
      if (status == Code::kTimedOut) co_return connect_timeout(address, to);
      SLUICE_CO_RETURN_IF_ERROR(status);
    }
    int error = 0;
    socklen_t length = sizeof(error);
    ::getsockopt(fd.value(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) co_return connect_error(address, to, error);
  }
  if (is_its_own_peer(fd.value())) {
    // Reset: in TIME_WAIT it would keep the port from the server that is to listen there.
    const linger reset{.l_onoff = 1, .l_linger = 0};
    (void)::setsockopt(fd.value(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    co_return connect_error(address, to, ECONNREFUSED);
  }
  fault_point("tcp.connected");
  co_return std::move(fd);
}

Task<Result<Descriptor>> connect_any(Awaits& awaits, const Address& address, Instant deadline) {
  SLUICE_CO_TRY(std::vector<SocketAddress> found, co_await addresses_of(awaits, address, deadline));
  Status last;
  for (size_t i = 0; i < found.size(); ++i) {
    const Instant until =
        turn_of_address(awaits.context().refresh_now(), deadline, found.size() - i);
    Result<Descriptor> fd = co_await connect_one(awaits, address, found[i], until);
    if (fd.ok()) co_return std::move(fd);
    last = fd.status();
    // A missing descriptor is ours, not the address's; a context that ends takes all of them.
    if (last == Code::kNoMemory || last == Code::kCancelled) break;
  }
  co_return last;
}

// `Message`: what the answer is, if it is no refusal.
template <typename Message>
Status decode_answer(const Address& address, const Glimpse& glimpse, wire::MessageType type,
                     Message& answer) {
  if (glimpse.common.type == wire::MessageType::kBye) {
    wire::Bye bye;
    SLUICE_RETURN_IF_ERROR(wire::decode(glimpse.header, bye));
    return proto::refused_by(address.to_string(), bye.code, Scope::kOperation, kOrigin);
  }
  if (glimpse.common.type != type) {
    return Status(Code::kCorrupt, Scope::kOperation, kOrigin,
                  "its answer is no " + std::string(wire::to_string(type)));
  }
  return wire::decode(glimpse.header, answer);
}

template <typename Message>
Task<Status> wait_for_answer(Awaits& awaits, const Address& address, int fd, wire::MessageType type,
                             Message& decoded, Instant deadline) {
  std::array<std::byte, kMaxGreetingBytes> scratch;
  EventWait wait(awaits.context(), fd);
  SLUICE_CO_RETURN_IF_ERROR(wait.start(EPOLLIN | EPOLLRDHUP));
  while (true) {
    Status waited = co_await awaits.until([&wait] { return wait.take_event(); }, deadline);
    if (waited == Code::kTimedOut) {
      co_return Status(Code::kTimedOut, Scope::kOperation, kOrigin,
                       address.to_string() + " accepted the connection but sent no " +
                           std::string(wire::to_string(type)) +
                           " before the deadline; check that it is a sluice server and that it "
                           "calls progress() and accept()");
    }
    SLUICE_CO_RETURN_IF_ERROR(waited);
    Glimpse glimpse = take_message(fd, scratch);
    if (glimpse.state == Glimpse::State::kIncomplete) {
      if (!wait.hung_up()) continue;
      glimpse.state = Glimpse::State::kEnded;
      glimpse.why = cut_off();
    }
    Status answer = glimpse.state == Glimpse::State::kEnded
                        ? glimpse.why
                        : decode_answer(address, glimpse, type, decoded);
    // A refusal has said all.
    if (answer.ok() || (glimpse.state == Glimpse::State::kComplete && answer != Code::kCorrupt))
      co_return answer;
    const bool foreign = answer == Code::kCorrupt;
    co_return Status(
        answer.code(), Scope::kOperation, kOrigin,
        address.to_string() + " did not greet us: " + std::string(answer.detail()) +
            (foreign ? "; another program may listen there: check the host and port" : ""),
        answer.os_error());
  }
}

Task<Result<Greeting>> greet_once(Awaits& awaits, const Address& address, const wire::Hello& said,
                                  Instant deadline) {
  SLUICE_CO_TRY(Descriptor fd, co_await connect_any(awaits, address, deadline));
  const wire::Hello ours = hello_towards(fd.value(), said);
  std::array<std::byte, wire::kMaxHeaderBytes> out;
  size_t length = wire::encode(ours, out);
  if (!send_all_now(fd.value(), out.data(), length)) co_return reading_error(errno);
  fault_point("tcp.hello_sent");
  wire::Hello peer;
  Status status = co_await wait_for_answer(awaits, address, fd.value(), wire::MessageType::kHello,
                                           peer, deadline);
  if (!status.ok()) {
    if (status == Code::kCorrupt) refuse(std::move(fd), Code::kCorrupt);
    co_return status;
  }
  fault_point("tcp.hello_received");
  auto version = wire::negotiate(ours, peer);
  if (!version.ok()) {
    refuse(std::move(fd), Code::kUnsupported);
    co_return version.status();
  }
  co_return Greeting(std::move(fd), ours, peer, *version);
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
    return end(
        Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
               "it closed the connection during the greeting; see its log, and connect again"));
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
                "it closed the connection inside a message; see its log, and connect again");
}

Task<Result<Greeting>> start_greet(Awaits& awaits, const Address& address, wire::Hello ours,
                                   Instant deadline) {
  int resets = 0;
  for (CallPauses pauses;;) {
    Result<Greeting> result = co_await greet_once(awaits, address, ours, deadline);
    if (result.ok()) co_return std::move(result);
    const int error = result.status().os_error();
    const bool reset = (error == ECONNRESET || error == EPIPE) && ++resets <= kMostResets;
    const Instant again = pauses.next(awaits.context().refresh_now());
    // kTimedOut before the deadline: the listener said so.
    if ((result.code() != Code::kTimedOut && !reset) || again >= deadline) {
      greetings_failed.add();
      co_return std::move(result);
    }
    greetings_repeated.add();
    Status waited = co_await awaits.until([] { return false; }, again);
    if (waited == Code::kCancelled) co_return waited;
  }
}

Task<Result<Greeting>> start_join(Awaits& awaits, const Address& address, wire::Hello ours,
                                  Instant deadline, bool& asked) {
  SLUICE_CO_TRY(Greeting greeting, co_await start_greet(awaits, address, ours, deadline));
  SLUICE_CO_RETURN_IF_ERROR(choose(greeting, Path::kTcp));
  asked = true;
  // Without a deadline: the peer may have taken it already, and closing it would end the
  // connection.
  wire::Done taken;
  SLUICE_CO_RETURN_IF_ERROR(co_await wait_for_answer(awaits, address, greeting.fd(),
                                                     wire::MessageType::kDone, taken, kNever));
  if (taken.id != static_cast<uint64_t>(Path::kTcp) || taken.code != Code::kOk) {
    co_return Status(Code::kCorrupt, Scope::kOperation, kOrigin,
                     address.to_string() +
                         " did not take a further stream; it breaks the protocol: see its version");
  }
  co_return std::move(greeting);
}

bool confirm_join(const Greeting& greeting) {
  std::array<std::byte, wire::kMaxHeaderBytes> out;
  size_t length =
      wire::encode(wire::Done{.id = static_cast<uint64_t>(Path::kTcp), .code = Code::kOk}, out);
  return send_all_now(greeting.fd(), out.data(), length);
}

Result<Greeting> greet(ContextCore& context, const Address& address, const wire::Hello& ours,
                       Instant deadline) {
  Awaits awaits(context);
  Task<Result<Greeting>> task = start_greet(awaits, address, ours, deadline);
  return context.run_until(task);
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
