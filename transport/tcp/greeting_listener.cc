#include <sluice/tcp/greeting_listener.h>

#include <errno.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/runtime/identity.h>
#include <sluice/tcp/resolve.h>

namespace sluice::tcp {
namespace {

constexpr const char* kOrigin = "tcp/greeting_listener";

// Callers that the kernel may hold, if ListenOptions::backlog says less: it drops the calls of
// others, who call again after 1, 3 and 7 s. Linux allows no more unless told (net.core.somaxconn).
constexpr int kKernelBacklog = 4096;
// Connections accepted in one go before others get their turn, and for how long.
constexpr size_t kAcceptsPerRound = 64;
constexpr Duration kAcceptTime = std::chrono::microseconds(500);
// Late greetings ended in one go: each costs a few system calls.
constexpr size_t kLatePerRound = 32;
// After a lack of descriptors: when to try again.
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

constexpr uint32_t kEvents = EPOLLIN | EPOLLRDHUP | EPOLLET;

Counter greetings_refused("tcp.greetings_refused");
Counter greetings_late("tcp.greetings_late");
Counter greetings_evicted("tcp.greetings_evicted");
Counter accepts_failed("tcp.accepts_failed");
Counter turned_away("tcp.turned_away_without_descriptors");

Status listen_error(const Address& address, int os_error) {
  auto status = [&](Code code, const std::string& what) {
    return Status(code, Scope::kOperation, kOrigin,
                  "cannot listen at " + address.to_string() + ": " + what, os_error);
  };
  switch (os_error) {
    case EADDRINUSE:
      return status(
          Code::kInvalidArgument,
          "the port is in use; choose another, or 0 for any free one (ss -ltnp shows who has it)");
    case EADDRNOTAVAIL:
      return status(Code::kInvalidArgument,
                    "no interface of this machine has the address (ip addr lists them); listen "
                    "at one of theirs, or at 0.0.0.0 or [::] for all");
    case EACCES:
      return status(Code::kAccessDenied,
                    "the port is privileged; choose one from 1024, or see "
                    "net.ipv4.ip_unprivileged_port_start");
    default: return status(Code::kUnreachable, "the system refuses it");
  }
}

Result<Descriptor> bind_and_listen(const Address& address, const SocketAddress& where,
                                   int backlog) {
  SLUICE_TRY(Descriptor fd, open_stream_socket(where.family()));
  int one = 1, zero = 0;
  // A restarted server gets its port back while old connections are in TIME_WAIT.
  ::setsockopt(fd.value(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  // [::] serves IPv4 as well.
  if (where.family() == AF_INET6)
    ::setsockopt(fd.value(), IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
  if (::bind(fd.value(), where.get(), where.length) != 0) return listen_error(address, errno);
  if (::listen(fd.value(), std::max(backlog, kKernelBacklog)) != 0)
    return listen_error(address, errno);
  return fd;
}

// Reserved, to be closed when a descriptor is needed.
}  // namespace

Result<std::unique_ptr<GreetingListener>> GreetingListener::open(ContextCore& context,
                                                                 const Address& address,
                                                                 const wire::Hello& ours,
                                                                 const GreetingOptions& options,
                                                                 PrepareHello prepare) {
  SLUICE_TRY(std::vector<SocketAddress> found, resolve(address));
  std::unique_ptr<GreetingListener> listener(
      new GreetingListener(context, ours, options, std::move(prepare)));
  Status last;
  for (const SocketAddress& where : found) {
    auto fd = bind_and_listen(address, where, options.backlog);
    if (fd.ok()) {
      listener->fd_ = std::move(fd).value();
      break;
    }
    last = fd.status();
  }
  if (!listener->fd_) return last;
  listener->address_ = address;
  listener->address_.port = local_address(listener->fd_.value()).port();
  listener->reserve_.fill();
  SLUICE_RETURN_IF_ERROR(context.watch(listener->fd_.value(), EPOLLIN | EPOLLET, listener.get()));
  return listener;
}

GreetingListener::~GreetingListener() { close(); }

void GreetingListener::close() {
  if (!fd_) return;
  context_.unwatch(fd_.value(), this);
  fd_.reset();
  reserve_.empty();
  while (!half_open_.empty()) refuse(detach(half_open_.front()), Code::kUnreachable);
  while (!ready_.empty()) {
    refuse(ready_.front().take_fd(), Code::kUnreachable);
    ready_.pop_front();
  }
}

std::optional<Greeting> GreetingListener::take() {
  if (ready_.empty()) return std::nullopt;
  std::optional<Greeting> first(std::move(ready_.front()));
  ready_.pop_front();
  return first;
}

size_t GreetingListener::progress(Instant now) {
  if (!fd_) return 0;
  size_t work = 0;
  while (work < kLatePerRound && !half_open_.empty() && half_open_.front().expires <= now) {
    ++work;
    HalfOpen& late = half_open_.front();
    // Who computes for longer than a greeting may take finds here what came in time; events are
    // looked at only after this.
    look(late, 0);
    if (half_open_.empty() || &half_open_.front() != &late || late.expires > now) continue;
    greetings_late.add();
    drop(late, Code::kTimedOut,
         Status(Code::kTimedOut, Scope::kEndpoint, kOrigin,
                "it did not finish its greeting in time; connect again"));
  }
  if (retry_accept_ <= now) {
    retry_accept_ = kNever;
    more_to_accept_ = true;
    reserve_.fill();
  }
  if (has_work()) work += accept_some();
  return work;
}

Instant GreetingListener::next_timeout() const {
  if (!fd_) return kNever;
  return half_open_.empty() ? retry_accept_ : std::min(retry_accept_, half_open_.front().expires);
}

bool GreetingListener::can_accept() const {
  return fd_ && retry_accept_ == kNever && ready_.size() < static_cast<size_t>(options_.backlog);
}

void GreetingListener::on_event(uint32_t) noexcept {
  more_to_accept_ = true;
  if (can_accept()) accept_some();
}

size_t GreetingListener::accept_some() {
  const Instant now = context_.refresh_now();
  for (size_t count = 0; count < kAcceptsPerRound; ++count) {
    if (count > 0 && sluice::now() - now >= kAcceptTime) return count;
    SocketAddress from;
    from.length = sizeof(from.storage);
    Descriptor fd(::accept4(fd_.value(), from.get(), &from.length, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) {
      add(std::move(fd), PeerIdentity::of_address(*from.get()), now);
      continue;
    }
    if (errno == EAGAIN) {
      more_to_accept_ = false;
      return count;
    }
    // accept(2): errors of the new connection are reported here; it is gone, others wait.
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) continue;
    out_of_descriptors(now, errno);
    return count + 1;
  }
  return kAcceptsPerRound;
}

// Unfinished greetings make room first. Then callers are refused. Connections go on.
void GreetingListener::out_of_descriptors(Instant now, int os_error) {
  accepts_failed.add();
  lack_log_.log(LogLevel::kWarning,
                "tcp: " + address_.to_string() +
                    " cannot accept: " + descriptor_error(kOrigin, os_error).to_string() +
                    " (more of this is counted in " + accepts_failed.name() + ")");
  if (silent_ > 0 && evict_oldest(greediest())) return;  // the next round accepts
  reserve_.turn_away(fd_.value(), [&](Descriptor caller) {
    turned_away.add();
    greetings_refused.add();
    refuse(std::move(caller), Code::kNoMemory);
  });
  reserve_.fill();
  retry_accept_ = after(now, kAcceptPause);
}

// The address with most connections that have said nothing; of several with as many, that of the
// oldest. Requires: there is one.
PeerIdentity GreetingListener::greediest() const {
  const HalfOpen* found = nullptr;
  size_t most = 0;
  for (const HalfOpen& half : half_open_) {
    if (half.greeted) continue;
    size_t count = half_open_by_.at(half.identity);
    if (count <= most) continue;
    most = count;
    found = &half;
  }
  return found->identity;
}

bool GreetingListener::evict_oldest(const PeerIdentity& of) {
  auto oldest = std::find_if(half_open_.begin(), half_open_.end(),
                             [&](const HalfOpen& h) { return !h.greeted && h.identity == of; });
  if (oldest == half_open_.end()) return false;
  greetings_evicted.add();
  // An honest one was slower than the others and calls again.
  drop(*oldest, Code::kTimedOut,
       Status(Code::kTryAgain, Scope::kEndpoint, kOrigin,
              "too many connections are being greeted; connect again"));
  return true;
}

// Within its own limit an address ends its own oldest; beyond those of all, the address with most
// does.
bool GreetingListener::make_room(const PeerIdentity& newcomer, const PeerAccount& account) {
  const uint64_t own = account.used(PeerResource::kHalfOpen);
  if (own >= context_.peer_accounts().limits().half_open.by_peer) return evict_oldest(newcomer);
  return silent_ > 0 && evict_oldest(greediest());
}

void GreetingListener::add(Descriptor fd, const PeerIdentity& identity, Instant now) {
  if (silent_ > 0 && silent_ >= options_.half_open_limit) (void)evict_oldest(greediest());
  std::shared_ptr<PeerAccount> account = context_.peer_accounts().open(identity);
  Status charged = account->charge(PeerResource::kHalfOpen);
  if (!charged.ok() && make_room(identity, *account))
    charged = account->charge(PeerResource::kHalfOpen);
  if (!charged.ok()) {
    greetings_refused.add();
    return refuse(std::move(fd), Code::kTimedOut);
  }
  PeerCharge charge(std::move(account), PeerResource::kHalfOpen);
  if (!set_connection_options(fd.value()).ok()) return;
  HalfOpen& peer = half_open_.emplace_back();
  peer.self = std::prev(half_open_.end());
  peer.owner = this;
  peer.fd = std::move(fd);
  peer.identity = identity;
  peer.charge = std::move(charge);
  peer.expires = after(now, options_.patience);
  ++half_open_by_[identity];
  ++silent_;
  if (!context_.watch(peer.fd.value(), kEvents, &peer).ok()) {
    accepts_failed.add();
    (void)detach(peer);
    return;
  }
  look(peer, 0);  // its HELLO may be here: it is none of those that make room
}

// It has a ticket now, and counts as a connection.
void GreetingListener::end_silence(HalfOpen& peer) {
  if (peer.greeted) return;
  peer.greeted = true;
  peer.charge.end();
  --silent_;
  auto counted = half_open_by_.find(peer.identity);
  if (--counted->second == 0) half_open_by_.erase(counted);
}

void GreetingListener::look(HalfOpen& peer, uint32_t epoll_events) {
  std::array<std::byte, kMaxGreetingBytes> scratch;
  while (true) {
    Glimpse glimpse = take_message(peer.fd.value(), scratch);
    if (glimpse.state == Glimpse::State::kIncomplete) {
      bool more_may_come = (epoll_events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0;
      if (more_may_come) return;
      return drop(peer, Code::kUnreachable, cut_off());
    }
    if (glimpse.state == Glimpse::State::kEnded) return drop(peer, glimpse.why.code(), glimpse.why);
    // A client that knows what it wants sends its choice right behind its HELLO.
    if (peer.greeted) return take_choice(peer, glimpse);
    if (!answer_hello(peer, glimpse)) return;
  }
}

bool GreetingListener::answer_hello(HalfOpen& peer, const Glimpse& glimpse) {
  auto fail = [&](const Status& why) {
    drop(peer, why.code(), why);
    return false;
  };
  if (glimpse.common.type != wire::MessageType::kHello) {
    return fail(
        Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, "its first message is not HELLO"));
  }
  wire::Hello theirs;
  Status status = wire::decode(glimpse.header, theirs);
  if (!status.ok()) return fail(status);
  wire::Hello ours = hello_towards(peer.fd.value(), ours_);
  auto version = wire::negotiate(ours, theirs);
  if (!version.ok()) return fail(version.status());
  Result<proto::ConnectionTicket> ticket = admit(peer, ours, theirs);
  if (!ticket.ok()) return fail(ticket.status());
  if (options_.streams != nullptr && (theirs.features & wire::kFeatureStreams) != 0) {
    ours.features |= wire::kFeatureStreams;
    ours.has_streams = !theirs.has_streams;
    if (ours.has_streams) fill_random(ours.streams_token.bytes);
  }
  if (prepare_ && !theirs.has_streams) prepare_(ours, peer.fd.value());
  fault_point("tcp.hello_received");
  std::array<std::byte, wire::kMaxHeaderBytes> out;
  size_t length = wire::encode(ours, out);
  if (!send_all_now(peer.fd.value(), out.data(), length)) {
    return fail(Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                       "it does not take our HELLO; connect again", errno));
  }
  fault_point("tcp.hello_answered");
  end_silence(peer);
  peer.greeting = Greeting(Descriptor(), ours, theirs, *version);
  peer.greeting.ticket = std::move(ticket).value();
  // Its time starts anew, so it is now the youngest.
  peer.expires = after(context_.now(), options_.patience);
  half_open_.splice(half_open_.end(), half_open_, peer.self);
  return true;
}

Result<proto::ConnectionTicket> GreetingListener::admit(HalfOpen& peer, const wire::Hello& ours,
                                                        const wire::Hello& theirs) {
  if (theirs.has_streams) {
    if (options_.streams == nullptr || !options_.streams->expects(theirs.streams_token)) {
      return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                    "it is a further stream of a connection that is not there any more; connect "
                    "again");
    }
    if (options_.admit_stream) return options_.admit_stream(peer.identity);
    return proto::ConnectionTicket();
  }
  if (!options_.admit) return proto::ConnectionTicket();
  const std::string name = "tcp://" + peer_address(peer.fd.value()).to_string();
  return options_.admit(peer.identity,
                        {.path = options_.introduced_as,
                         .address = name,
                         .user_id = {},
                         .process_id = {},
                         .incarnation = theirs.incarnation,
                         .said_process_id = same_host(ours, theirs) ? theirs.pid : 0});
}

void GreetingListener::take_choice(HalfOpen& peer, const Glimpse& glimpse) {
  wire::Done done;
  if (glimpse.common.type == wire::MessageType::kBye) {
    return drop(peer, Code::kOk,
                Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                       "it changed its mind; see its log, and connect again"));
  }
  Status status = glimpse.common.type == wire::MessageType::kDone
                      ? wire::decode(glimpse.header, done)
                      : Status(Code::kCorrupt, Scope::kEndpoint, kOrigin,
                               "no choice of a path follows its HELLO");
  if (!status.ok()) return drop(peer, status.code(), status);
  auto served = std::find_if(options_.paths.begin(), options_.paths.end(),
                             [&](Path path) { return static_cast<uint64_t>(path) == done.id; });
  if (served == options_.paths.end() || done.code != Code::kOk) {
    return drop(peer, Code::kUnsupported,
                Status(Code::kUnsupported, Scope::kEndpoint, kOrigin,
                       "it chose a path that is not served here"));
  }
  Greeting half = std::move(peer.greeting);
  Greeting greeting(detach(peer), half.ours, half.peer, half.version);
  greeting.ticket = std::move(half.ticket);
  greeting.chosen = *served;
  if (greeting.peer.has_streams) return options_.streams->take_stream(std::move(greeting));
  ready_.push_back(std::move(greeting));
  fault_point("tcp.choice_received");
}

void GreetingListener::drop(HalfOpen& peer, Code code, const Status& why) {
  greetings_refused.add();
  if (log_enabled(LogLevel::kInfo)) {
    log(LogLevel::kInfo, "tcp: " + address_.to_string() + " refused " +
                             peer_address(peer.fd.value()).to_string() + ": " + why.to_string());
  }
  refuse(detach(peer), code);
}

Descriptor GreetingListener::detach(HalfOpen& peer) {
  context_.unwatch(peer.fd.value(), &peer);
  Descriptor fd = std::move(peer.fd);
  end_silence(peer);
  half_open_.erase(peer.self);
  return fd;
}

}  // namespace sluice::tcp
