#include <sluice/l2/provider.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/base/log.h>
#include <sluice/base/mac_names.h>
#include <sluice/base/settings.h>
#include <sluice/l2/carrier/packet_socket.h>
#include <sluice/l2/carrier/udp_carrier.h>
#include <sluice/l2/carrier/udp_socket.h>
#include <sluice/l2/carrier/xdp_carrier.h>
#include <sluice/l2/discovery/discovery.h>
#include <sluice/l2/traits.h>
#include <sluice/l2/way.h>
#include <sluice/proto/hello.h>
#include <sluice/runtime/awaits.h>

#include "kernel_compat/slp/slp.h"

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/provider";
// Bytes asked of all peers and not yet here: a few hundred microseconds of a fast link. An eighth
// is kept for peers that owe little (slp_node.c); what is left holds a whole window of a transfer.
constexpr uint64_t kPullBudget = 5 << 19;
// Nobody answers the HELLO for so long: nobody is there. (tcp: a refused connection.)
constexpr Duration kAnswerLimit = std::chrono::seconds(3);
// A second session, in UDP, is there by then or is done without.
constexpr Duration kSecondLimit = std::chrono::milliseconds(500);
// Frames that are handed out within a microsecond or two: what is sent in answer bears their time.
constexpr size_t kFewFrames = 4;
// Timers, and connections that send, in one turn: so long of each, looked at after so many.
constexpr Duration kTurnPart = std::chrono::microseconds(300);
constexpr size_t kBetweenLooks = 16;
// The last messages of a closed connection have this long to be acknowledged.
constexpr Duration kLingerLimit = std::chrono::seconds(1);
// The same when the context goes away, which waits for it.
constexpr Duration kLastLingerLimit = std::chrono::milliseconds(100);
// Timers that are nearer are waited for without sleep, which would cost as much.
constexpr Duration kTooNearToSleep = std::chrono::microseconds(20);
// Epoll counts milliseconds: nearer ones take a timer of the kernel.
constexpr Duration kEpollTick = std::chrono::milliseconds(1);
// Rings of 4 MiB in one context. Ports beyond these ask by calls, which many seldom ones do anyway.
constexpr int kMostRings = 4;
// Listeners are looked at so often at least when nobody greets.
constexpr Duration kListenersInterval = std::chrono::milliseconds(100);

Status invalid(std::string why) {
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, std::move(why));
}

}  // namespace

// A connection that its peer knows: it is seen off, also by a task that is dropped.
class L2Provider::Seen {
 public:
  Seen(L2Provider& owner, std::unique_ptr<Connection> connection)
      : owner_(owner), connection_(std::move(connection)) {}
  ~Seen() {
    if (connection_ != nullptr) owner_.linger(std::move(connection_));
  }
  Seen(const Seen&) = delete;
  Seen& operator=(const Seen&) = delete;
  Connection* operator->() const { return connection_.get(); }
  Connection& operator*() const { return *connection_; }
  std::unique_ptr<Connection> take() { return std::move(connection_); }

 private:
  L2Provider& owner_;
  std::unique_ptr<Connection> connection_;
};

L2Provider::L2Provider(ContextCore& context)
    : context_(context),
      machines_(context.peer_accounts()),
      node_(std::make_unique<slp_node>()),
      sending_room_(context.tuning().l2_batch_frames),
      work_(slp_work_bytes()),
      sleep_timer_(context),
      connections_(context.now()) {
  slp_node_init(node_.get(), kPullBudget);
}

L2Provider::~L2Provider() {
  connections_.detach_all();
  while (!listeners_.empty()) listeners_.back()->close();
  left_seconds_.clear();
  Instant deadline = after(now(), kLastLingerLimit);
  while (!connections_.leaving().empty() && now() < deadline) {
    Instant t = now();
    proto::TurnBudget budget;
    if (room_.owner != nullptr) room_.owner->resume(room_, t, budget);
    for (const auto& port : ports_) {
      if (room_.owner == nullptr) port->receive(room_, t, budget);
    }
    fire_timers(t);
    send_out(now());
    see_off(t);
  }
  connections_.drop_leaving();
}

void L2Provider::shut_down() {
  connections_.sessions().abort_all(
      Status(Code::kCancelled, Scope::kContext, kOrigin, "the context was closed"));
}

bool L2Provider::may_have_ring() const {
  return std::count_if(ports_.begin(), ports_.end(),
                       [](const auto& port) { return port->carrier().has_ring(); }) < kMostRings;
}

Result<Port*> L2Provider::open_port(OpenedCarrier opened) {
  SLUICE_TRY(std::unique_ptr<Port> port, Port::open(context_, *this, std::move(opened)));
  room_.reserve(port->carrier().slot_bytes());
  // What is asked for must find room when all of it comes at once.
  node_->pull_budget = std::min<uint64_t>(node_->pull_budget, port->carrier().receive_bytes());
  ports_.push_back(std::move(port));
  hot_.add(*ports_.back());
  note_use();
  return ports_.back().get();
}

Task<Result<std::unique_ptr<Connection>>> L2Provider::meet(const Address& address, wire::Hello ours,
                                                           std::shared_ptr<const Secret> secret,
                                                           Instant deadline) {
  // A port of its own: a second HELLO from the same port would be a restart.
  SLUICE_CO_TRY(Way way, co_await open_way(context_, address, may_have_ring(), deadline));
  SLUICE_CO_TRY(Port * port, open_port(std::move(way.opened)));
  untidy_ = true;
  Connection::Place place{port, way.peer, address.port, std::move(secret)};
  SLUICE_CO_TRY(std::unique_ptr<Connection> connection,
                Connection::connect(*this, std::move(place), ours));
  using State = Connection::State;
  Awaits& awaits = context_.awaits();
  bool refused = false;
  auto over = [&] {
    // Anybody can say so: it is believed only before the peer has been heard.
    refused = refused || (port->carrier().refused() && connection->state() == State::kConnecting);
    return refused || connection->state() == State::kReady || connection->state() == State::kEnded;
  };
  fault_point("l2.hello");
  const Instant silent = after(context_.refresh_now(), kAnswerLimit);
  Status waited =
      co_await awaits.until([&] { return over() || connection->state() == State::kGreeting; },
                            std::min(deadline, silent));
  if (waited == Code::kCancelled) co_return waited;
  if (refused) {
    co_return Status(
        Code::kUnreachable, Scope::kOperation, kOrigin,
        "nobody listens at " + address.to_string() + ": its machine says that the port is closed");
  }
  if (connection->state() == State::kConnecting && !connection->was_heard() && now() >= silent) {
    SLUICE_CO_RETURN_IF_ERROR(connection->hint());
    co_return Status(Code::kUnreachable, Scope::kOperation, kOrigin,
                     "nobody answers at " + address.to_string() +
                         "; listen there first, on an interface of the same network, or have the "
                         "program that listens call progress()");
  }
  if (!over()) waited = co_await awaits.until(over, deadline);
  if (waited == Code::kCancelled) co_return waited;
  if (connection->state() == State::kConnecting) SLUICE_CO_RETURN_IF_ERROR(connection->hint());
  if (connection->state() == State::kReady && !connection->failed())
    co_return std::move(connection);
  if (connection->failed()) co_return connection->failure();
  co_return Status(waited.code(), Scope::kOperation, kOrigin,
                   (connection->was_heard() ? "no connection to " : "no answer from ") +
                       address.to_string() +
                       " before the deadline; have its program call progress() and accept(), or "
                       "give connect() more time");
}

Task<Result<std::shared_ptr<EndpointCore>>> L2Provider::start_connect(
    const Address& asked, const ConnectOptions& options, proto::SessionOptions session) {
  if (inside_)
    co_return Status(Code::kWrongState, Scope::kOperation, kOrigin,
                     "connect() from inside a completion; post it to after progress()");
  const Instant deadline = after(context_.refresh_now(), options.timeout);
  Address address = asked;
  if (discovery_wanted(options)) {
    SLUICE_CO_TRY(address, co_await with_names_found(context_, asked, deadline));
  }
  if (!address.name.empty() && address.port == 0 && !address.is_udp()) {
    co_return invalid(address.to_string() + " names no port; write l2://" + address.host + "/" +
                      address.name +
                      ":7, or have a listener's name asked for by ConnectOptions::discover or "
                      "SLUICE_L2_DISCOVER=1");
  }
  if (address.name.empty() || address.port == 0) {
    co_return invalid(address.to_string() + " names no peer; connect to l2://" + address.host +
                      (address.is_udp() ? "/10.0.0.1:7000, with its IP address and port"
                                        : "/02:00:00:00:00:0b:7, with its MAC address and port"));
  }
  SLUICE_CO_TRY(std::shared_ptr<const Secret> secret, Secret::chosen(options.secret_file));
  wire::Hello ours = proto::hello_for_strangers(context_, session);
  if (!address.is_udp() && !address.xdp && second_session_wanted()) wish_second(ours);
  auto connection = co_await meet(address, ours, std::move(secret), deadline);
  if (!connection.ok()) {
    tidy();
    co_return connection.status();
  }
  Seen first(*this, std::move(connection).value());
  SLUICE_CO_RETURN_IF_ERROR(first->charge(PeerResource::kConnections));
  Met met = about(*first, session.why);
  std::unique_ptr<Connection> second;
  if (wishes_second(ours)) second = co_await meet_second(*first, met.reason, deadline);
  if (second != nullptr) {
    auto both = std::make_unique<TwoCarriers>(first.take());
    both->join(std::move(second));
    met.connection = std::move(both);
  } else {
    met.connection = first.take();
  }
  tidy();
  co_return make_endpoint(std::move(met), options.require, session);
}

Result<std::unique_ptr<ListenerCore>> L2Provider::listen(const Address& address,
                                                         const ListenOptions& options) {
  SLUICE_TRY(std::unique_ptr<L2Listener> listener,
             open_listener(address, options, proto::session_options(options)));
  if (std::string name = name_to_be_found_by(options); !name.empty() && !address.is_udp()) {
    SLUICE_TRY(listener->findable_,
               Findable::open(context_, address.host, listener->port_->number(), name));
  }
  return std::unique_ptr<ListenerCore>(std::move(listener));
}

Result<std::unique_ptr<ListenerCore>> L2Provider::listen(const Address& address,
                                                         const ListenOptions& options,
                                                         const proto::SessionOptions& session) {
  SLUICE_TRY(std::unique_ptr<L2Listener> listener, open_listener(address, options, session));
  return std::unique_ptr<ListenerCore>(std::move(listener));
}

Result<std::unique_ptr<L2Listener>> L2Provider::open_listener(
    const Address& address, const ListenOptions& options, const proto::SessionOptions& session) {
  SLUICE_TRY(std::shared_ptr<const Secret> secret, Secret::chosen(options.secret_file));
  PeerAddress meant;
  if (!address.is_udp() && !address.name.empty()) {
    SLUICE_TRY(MacAddress mac, mac_at(address.host, address.name));
    meant = peer_at(mac);
  }
  SLUICE_TRY(OpenedCarrier opened,
             address.is_udp() ? open_udp_carrier(address.name, address.port)
             : address.xdp    ? open_xdp_carrier(address.host, address.port)
                              : open_packet_carrier(address.host, address.port, may_have_ring()));
  SLUICE_TRY(Port * port, open_port(std::move(opened)));
  if (meant.size != 0 && meant != port->carrier().own_address()) {
    Status why = invalid(address.host + " has the address " +
                         mac_text(port->carrier().own_address()) + ", not " + address.name +
                         "; listen at l2://" + address.host + ":" + std::to_string(address.port));
    untidy_ = true;
    tidy();
    return why;
  }
  auto listener = std::make_unique<L2Listener>(*this, *port, options, session, std::move(secret));
  SLUICE_RETURN_IF_ERROR(
      listener->begin(address.is_udp() || address.xdp ? std::string() : address.host));
  return listener;
}

L2Provider::Met L2Provider::about(const Connection& connection, const std::string& why) {
  return {.connection = nullptr,
          .account = connection.machine().account(),
          .ours = connection.ours(),
          .peer = connection.peer(),
          .traits = l2_traits(connection.path(), connection.place().secret != nullptr,
                              connection.place().port->carrier().kernel_copies()),
          .reason = "l2: " + why};
}

Task<std::unique_ptr<Connection>> L2Provider::meet_second(const Connection& first,
                                                          std::string& reason, Instant deadline) {
  auto alone = [&](const std::string& why) {
    reason += "; memory goes as raw frames, too: " + why;
    return nullptr;
  };
  SecondPlace place = offered_second(first.peer());
  if (place.host.empty()) co_return alone("the peer offers no UDP");
  auto address = Address::parse("l2://udp/" + place.host + ":" + std::to_string(place.port));
  if (!address.ok()) co_return alone(address.status().to_string());
  auto second = co_await meet(*address, first.ours(), first.place().secret,
                              std::min(deadline, after(context_.refresh_now(), kSecondLimit)));
  if (!second.ok()) co_return alone(second.status().to_string());
  // From its message on it counts at the peer, too.
  static constexpr std::byte kJoins{1};
  if (!(*second)->send({&kJoins, 1}, {})) co_return alone("its first message found no room");
  reason += "; memory goes in UDP, to " + place.host + ":" + std::to_string(place.port);
  co_return std::move(second).value();
}

// Null: that interface has no IPv4 address, or nothing can be bound there.
std::unique_ptr<SecondSessions> L2Provider::open_second(const std::string& interface,
                                                        std::shared_ptr<const Secret> secret,
                                                        wire::Hello& ours) {
  std::string host = ipv4_of(interface);
  if (host.empty() || !second_session_wanted()) return nullptr;
  auto opened = open_udp_carrier(host, 0);
  auto port = opened.ok() ? open_port(std::move(opened).value()) : Result<Port*>(opened.status());
  if (!port.ok()) return nullptr;
  auto release = [this](std::unique_ptr<Connection> connection) { linger(std::move(connection)); };
  auto seconds = std::make_unique<SecondSessions>(*this, **port, std::move(secret), ours, release);
  if (!seconds->begin().ok()) return nullptr;
  offer_second(ours, host, (*port)->number());
  return seconds;
}

Result<std::shared_ptr<EndpointCore>> L2Provider::make_endpoint(
    Met met, const Requirements& require, const proto::SessionOptions& options) {
  if (std::string why = unmet(require, met.traits.properties); !why.empty()) {
    linger(std::move(met.connection));
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin, why);
  }
  auto link = std::make_unique<proto::DirectLink>(*this, std::move(met.connection), met.traits);
  auto endpoint = connections_.open(std::move(link), context_.link_decorator(),
                                    proto::SessionParts{
                                        .arena = context_.shared_arena(),
                                        .population = &context_.population(),
                                        .mailbox = context_.mailbox(),
                                        .ours = met.ours,
                                        .peer = met.peer,
                                        .options = options,
                                        .reason = std::move(met.reason),
                                        .account = std::move(met.account),
                                    });
  note_use();
  return endpoint;
}

size_t L2Provider::progress(Instant now) {
  // A completion may progress the context: the frames that are being handed out come first.
  if (inside_) return 0;
  ContextCore::LoneTurn lone(context_);
  inside_ = true;
  // A turn in which nothing comes reads no clock: the context's is a few dozen turns old at most.
  Instant exact = now;
  size_t work = hot_.receive(room_, exact);
  bool much = work > kFewFrames;
  if (timers_.next() <= exact) fire_timers(exact);
  // Every connection with news is active. A link that is told of news may make others active.
  for (size_t i = 0; i < active_.size(); ++i) {
    if (active_[i]->link != nullptr) {
      work += active_[i]->link->poll(exact);
    } else {
      listeners_due_ = {};  // it greets
    }
  }
  if (listeners_due_ <= exact) work += progress_listeners(exact);
  work += connections_.sessions().progress(now);
  if (!active_.empty()) send_out(work == 0 || much ? sluice::now() : exact);
  if (!connections_.leaving().empty()) work += see_off(exact);
  inside_ = false;
  if (untidy_) tidy();
  return work;
}

size_t L2Provider::progress_listeners(Instant now) {
  size_t work = 0;
  for (size_t i = 0; i < listeners_.size(); ++i) work += listeners_[i]->progress(now);
  for (const auto& seconds : left_seconds_)
    work += seconds->progress(now, [](const wire::Uuid&) { return false; });
  untidy_ =
      std::erase_if(left_seconds_, [](const auto& seconds) { return !seconds->awaited(); }) > 0 ||
      untidy_;
  listeners_due_ = after(now, kListenersInterval);
  for (const L2Listener* listener : listeners_)
    listeners_due_ = std::min(listeners_due_, listener->next_timeout());
  for (const auto& seconds : left_seconds_)
    listeners_due_ = std::min(listeners_due_, seconds->next_timeout());
  return work;
}

void L2Provider::activate(Connection& connection) noexcept {
  if (std::exchange(connection.marked_active, true)) return;
  active_.push_back(&connection);
}

void L2Provider::posted(Connection& connection) noexcept {
  if (inside_) return activate(connection);  // with all else of this turn
  if (connection.pump(sluice::now())) activate(connection);
  timers_.set(connection.timer, connection.next_timeout());
  hot_.add(*connection.place().port);  // for the answer
}

void L2Provider::remember(Connection& connection) {
  // Room for all of them at once: activate() never allocates.
  ++living_;
  size_t room = std::bit_ceil(living_);
  active_.reserve(room);
  sending_.reserve(room);
  timers_.reserve(room);
}

void L2Provider::forget(Connection& connection) noexcept {
  --living_;
  timers_.set(connection.timer, kNever);
  std::erase(active_, &connection);
  std::replace(sending_.begin(), sending_.end(), &connection, static_cast<Connection*>(nullptr));
  untidy_ = true;
}

// What this turn has left in SLP's streams and windows.
void L2Provider::send_out(Instant now) {
  sending_.swap(active_);
  const Instant begun = sending_.size() > kBetweenLooks ? sluice::now() : Instant{};
  for (size_t i = 0; i < sending_.size(); ++i) {
    if (i > 0 && i % kBetweenLooks == 0 && sluice::now() - begun >= kTurnPart) {
      active_.insert(active_.begin(), sending_.begin() + static_cast<ptrdiff_t>(i), sending_.end());
      std::erase(active_, nullptr);
      break;
    }
    Connection* connection = sending_[i];
    if (connection == nullptr) continue;
    connection->marked_active = false;
    if (connection->pump(now) || (connection->link != nullptr && connection->link->has_news()))
      activate(*connection);
    timers_.set(connection->timer, connection->next_timeout());
  }
  sending_.clear();
}

void L2Provider::fire_timers(Instant now) {
  const Instant begun = sluice::now();
  for (size_t fired = 1; timers_.next() <= now; ++fired) {
    if (fired % kBetweenLooks == 0 && sluice::now() - begun >= kTurnPart) return;
    Connection& connection = *timers_.first().owner;
    // What it has to send now may be what is due: the timer is set again when it is sent.
    timers_.set(connection.timer, kNever);
    connection.on_timer(now);
    connection.place().port->check(now);
  }
}

void L2Provider::linger(std::unique_ptr<proto::DirectConnection> connection) noexcept {
  connection->leave();
  connections_.linger(std::move(connection), after(sluice::now(), kLingerLimit));
  untidy_ = true;
  note_use();
}

size_t L2Provider::see_off(Instant now) {
  return connections_.see_off(
      now, [](const proto::DirectConnection& connection) { return connection.drained(); });
}

// Lets go of what nobody uses any more.
void L2Provider::tidy() {
  if (inside_) return;
  untidy_ = false;
  connections_.forget_closed();
  std::erase_if(ports_, [&](const auto& port) {
    if (port->in_use()) return false;
    hot_.remove(*port);
    if (room_.owner == port.get()) room_.owner = nullptr;
    return true;
  });
  if (ports_.empty()) sleep_timer_.close();
  note_use();
}

void L2Provider::note_use() {
  in_use_ = !ports_.empty() || connections_.sessions().size() > 0 || untidy_;
}

bool L2Provider::begin_sleep() {
  if (connections_.sessions().has_work() || !active_.empty() || room_.owner != nullptr ||
      !hot_.watch_all())
    return false;
  Instant now = sluice::now(), next = timers_.next();
  if (next <= after(now, kTooNearToSleep)) return false;
  return next > after(now, kEpollTick) || sleep_timer_.arm(next, now);
}

Instant L2Provider::next_timeout() {
  Instant next = std::min(connections_.next_timeout(), timers_.next());
  for (const L2Listener* listener : listeners_) {
    next = std::min(next, listener->next_timeout());
    // A frame that the kernel drops wakes nobody.
    if (listener->guarded()) next = std::min(next, listeners_due_);
  }
  for (const auto& seconds : left_seconds_) next = std::min(next, seconds->next_timeout());
  return next;
}

std::string L2Provider::explain() const {
  Status allowed = packet_sockets_allowed();
  auto udp = explain_udp();
  return (allowed.ok() ? "usable for l2:// addresses" : std::string(allowed.detail())) +
         "; for l2://udp/ addresses: " + (udp.ok() ? *udp : std::string(udp.status().detail()));
}

}  // namespace sluice::l2
