#include <sluice/verbs/provider.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/log.h>
#include <sluice/proto/hello.h>
#include <sluice/proto/listener_limits.h>
#include <sluice/runtime/awaits.h>
#include <sluice/runtime/names.h>

namespace sluice::verbs {
namespace {

constexpr const char* kOrigin = "verbs/provider";
// The last messages of a closed connection have this long to be acknowledged.
constexpr Duration kLingerLimit = std::chrono::seconds(1);
// The same when the context goes away, which waits for it.
constexpr Duration kLastLingerLimit = std::chrono::milliseconds(100);
// A completion event can be lost by a device or a driver: look this often while asleep.
constexpr Duration kWatchdog = std::chrono::milliseconds(100);
// A port that is down for so long is unplugged (as tcp's kUnpluggedAfter): soft-RoCE does
// not count repeats that its own link refuses.
constexpr Duration kUnpluggedAfter = std::chrono::seconds(3);

Counter missed_events("verbs.missed_events");
Counter ports_down("verbs.ports_down");
Counter peer_access_refused("verbs.peer_access_refused");

// What comes on a connection that is being closed is of no use to anybody.
class Nobody final : public proto::DirectClient {
  void on_message(ConstBytes, Instant) override {}
  void on_notice(uint32_t, Instant) override {}
  void on_moved(uint64_t, uint64_t, Instant) override {}
  void on_window_closed(uint64_t, Instant) override {}
};

class RdmaListener final : public ListenerCore {
 public:
  RdmaListener(VerbsProvider& provider, ContextCore& context,
               std::unique_ptr<VerbsListener> listener, Address address,
               const ListenOptions& options)
      : provider_(provider),
        listener_(std::move(listener)),
        address_(std::move(address)),
        options_(options),
        limits_(context, options, address_.to_string()) {
    if (address_.port == 0) address_.port = listener_->port();
  }
  std::shared_ptr<EndpointCore> accept() override {
    while (listener_ != nullptr) {
      std::unique_ptr<Connection> connection = listener_->take();
      if (connection == nullptr) return nullptr;
      const std::string who = connection->peer_name();
      auto endpoint =
          provider_.make_endpoint(std::move(connection), options_.require,
                                  proto::session_options(options_), "rdma: was asked for");
      if (endpoint.ok() && limits_.let_in(static_cast<proto::Session&>(**endpoint)))
        return std::move(endpoint).value();
      if (endpoint.ok()) continue;
      lost_.log(LogLevel::kWarning,
                "lost the peer " + who + " at " + address() + ": " + endpoint.status().to_string());
    }
    return nullptr;
  }
  std::string address() const override { return address_.to_string(); }
  void close() override { listener_.reset(); }

 private:
  VerbsProvider& provider_;
  std::unique_ptr<VerbsListener> listener_;
  Address address_;
  ListenOptions options_;
  proto::ListenerLimits limits_;
  LogThrottle lost_;
};

}  // namespace

VerbsProvider::VerbsProvider(ContextCore& context)
    : context_(context), connections_(context.now()) {}

VerbsProvider::~VerbsProvider() {
  connections_.detach_all();
  while (!listeners_.empty()) listeners_.back()->let_go();
  Instant deadline = after(now(), kLastLingerLimit);
  while (!connections_.leaving().empty() && now() < deadline) see_off(now());
  connections_.drop_leaving();
  hub_.reset();
  devices_.clear();
}

void VerbsProvider::shut_down() {
  connections_.sessions().abort_all(
      Status(Code::kCancelled, Scope::kContext, kOrigin, "the context was closed"));
}

Result<VerbsApi*> VerbsProvider::api() { return verbs_api(); }

Result<CmHub*> VerbsProvider::hub() {
  if (hub_ == nullptr) {
    SLUICE_TRY(VerbsApi * calls, api());
    SLUICE_TRY(hub_, CmHub::open(context_, *calls));
  }
  return hub_.get();
}

Result<Device*> VerbsProvider::device(const std::string& name) {
  for (auto& open : devices_) {
    if (open->name() == name && !open->dead()) return open.get();
  }
  SLUICE_TRY(VerbsApi * calls, api());
  SLUICE_TRY(std::unique_ptr<Device> opened, Device::open(context_, *calls, name));
  opened->set_watcher(this);
  software_ = software_ || opened->limits().software;
  devices_.push_back(std::move(opened));
  return devices_.back().get();
}

// Steps the connection in every turn while it lives, also of a task that is dropped.
class VerbsProvider::Meeting {
 public:
  Meeting(VerbsProvider& owner, Connection* connection) : owner_(owner), connection_(connection) {
    owner_.meeting_.push_back(connection_);
    owner_.note_use();
  }
  ~Meeting() {
    std::erase(owner_.meeting_, connection_);
    owner_.note_use();
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

 private:
  VerbsProvider& owner_;
  Connection* connection_;
};

// However an attempt fails, also by a task that is dropped, no device is left open by it.
class VerbsProvider::Attempt {
 public:
  explicit Attempt(VerbsProvider& owner) : owner_(owner) {}
  ~Attempt() {
    if (!met) owner_.drop_unused_devices();
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  bool met = false;

 private:
  VerbsProvider& owner_;
};

Task<Result<std::unique_ptr<Connection>>> VerbsProvider::meet(std::string host, uint16_t port,
                                                              wire::Hello ours, Instant deadline) {
  SLUICE_CO_TRY(CmHub * cm, hub());
  const Address asked{.scheme = Scheme::kRdma, .host = std::move(host), .port = port};
  SLUICE_CO_TRY(std::vector<SocketAddress> found,
                co_await addresses_of(context_.awaits(), asked, deadline));
  Status last;
  for (size_t i = 0; i < found.size(); ++i) {
    const Instant until = turn_of_address(context_.refresh_now(), deadline, found.size() - i);
    auto connection = co_await meet_at(*cm, found[i], ours, until);
    if (connection.ok()) co_return connection;
    last = connection.status();
    // Memory and descriptors are ours, not the address's; a context that ends takes all of them.
    if (last == Code::kNoMemory || last == Code::kCancelled) break;
  }
  co_return last;
}

Task<Result<std::unique_ptr<Connection>>> VerbsProvider::meet_at(CmHub& cm, SocketAddress to,
                                                                 wire::Hello ours,
                                                                 Instant deadline) {
  Attempt attempt(*this);  // ends after the connection
  SLUICE_CO_TRY(std::unique_ptr<Connection> connection,
                Connection::connect(cm, *this, to, ours, deadline));
  using State = Connection::State;
  Status waited;
  {
    Meeting meeting(*this, connection.get());
    waited = co_await context_.awaits().until(
        [state = connection.get()] {
          return state->state() == State::kReady || state->state() == State::kEnded;
        },
        deadline);
  }
  attempt.met = connection->state() == State::kReady;
  if (attempt.met) co_return std::move(connection);
  if (connection->state() == State::kEnded) co_return connection->why();
  if (waited == Code::kCancelled) co_return waited;
  co_return Status(waited.code(), Scope::kOperation, kOrigin,
                   "no RDMA connection to " + to.to_string() + " before the deadline");
}

Task<Result<std::shared_ptr<EndpointCore>>> VerbsProvider::start_connect(
    const Address& address, const ConnectOptions& options) {
  const proto::SessionOptions session = proto::session_options(options);
  const Instant deadline = after(context_.refresh_now(), options.timeout);
  SLUICE_CO_TRY(auto connection,
                co_await meet(address.host, address.port,
                              proto::hello_for_strangers(context_, session), deadline));
  co_return make_endpoint(std::move(connection), options.require, session, "rdma: was asked for");
}

Result<std::unique_ptr<VerbsListener>> VerbsProvider::open_listener(const std::string& host,
                                                                    uint16_t port, int backlog,
                                                                    const wire::Hello& ours,
                                                                    Duration patience) {
  SLUICE_TRY(CmHub * cm, hub());
  SLUICE_TRY(SocketAddress at, resolve(host, port, true));
  return VerbsListener::open(*this, *cm, at, backlog, ours, patience);
}

Result<std::unique_ptr<ListenerCore>> VerbsProvider::listen(const Address& address,
                                                            const ListenOptions& options) {
  SLUICE_TRY(auto listener,
             open_listener(address.host, address.port, options.backlog,
                           proto::hello_for_strangers(context_, proto::session_options(options))));
  return std::unique_ptr<ListenerCore>(
      std::make_unique<RdmaListener>(*this, context_, std::move(listener), address, options));
}

Result<std::shared_ptr<EndpointCore>> VerbsProvider::make_endpoint(
    std::unique_ptr<Connection> connection, const Requirements& require,
    const proto::SessionOptions& options, std::string reason) {
  const DeviceLimits& limits = connection->queue().device().limits();
  if (std::string why = unmet(require, verbs_traits(limits, 0).properties); !why.empty()) {
    connection.reset();
    drop_unused_devices();
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin, why);
  }
  wire::Hello ours = connection->ours(), peer = connection->peer();
  auto account = context_.peer_accounts().open(connection->peer_identity());
  auto link = std::make_unique<VerbsLink>(*this, std::move(connection));
  auto endpoint = connections_.open(std::move(link), context_.link_decorator(),
                                    proto::SessionParts{
                                        .arena = context_.shared_arena(),
                                        .population = &context_.population(),
                                        .mailbox = context_.mailbox(),
                                        .ours = ours,
                                        .peer = peer,
                                        .options = options,
                                        .reason = std::move(reason),
                                        .account = std::move(account),
                                    });
  note_use();
  return endpoint;
}

uint64_t VerbsProvider::sum_of(uint64_t (Device::*count)() const) const {
  uint64_t sum = 0;
  for (const auto& device : devices_) sum += (device.get()->*count)();
  return sum;
}

size_t VerbsProvider::progress(Instant now) {
  size_t work = 0;
  Instant slept_since = std::exchange(slept_since_, kNever);
  bool overslept = slept_since != kNever && now - slept_since >= kWatchdog;
  uint64_t completions_before = overslept ? sum_of(&Device::completions) : 0;
  const auto& held = connections_.held();
  for (size_t i = 0; i < held.size(); ++i) {
    VerbsLink* link = held[i].link;
    if (link->closed()) {
      some_closed_ = true;
      continue;
    }
    work += link->poll(now);
  }
  for (size_t i = 0; i < meeting_.size(); ++i) work += meeting_[i]->step(now);
  for (size_t i = 0; i < listeners_.size(); ++i) work += listeners_[i]->progress(now);
  bool unannounced = overslept && sum_of(&Device::announcements) == announced_before_;
  if (unannounced && sum_of(&Device::completions) > completions_before) missed_events.add();
  work += connections_.sessions().progress(now);
  // Not before: what all its operations posted in this turn takes one doorbell.
  if (work > 0) {
    for (const auto& [session, link] : held) link->flush();
  }
  if (!connections_.leaving().empty()) work += see_off(now);
  if (some_closed_) forget_closed();
  if (port_check_ <= now) work += check_ports(now);
  return work;
}

// While a port is down, or something waits for it to come up again.
size_t VerbsProvider::check_ports(Instant now) {
  size_t work = 0;
  bool waiting = false;
  for (auto& device : devices_) {
    work += device->dig();
    waiting = waiting || device->has_buried() || device->dead();
  }
  work += std::erase_if(devices_, [](const auto& device) {
    return device->dead() && !device->in_use() && !device->has_buried();
  });
  if (some_port_down_) {
    Status why(
        Code::kUnreachable, Scope::kEndpoint, kOrigin,
        "the port of the RDMA device has been down for 3 s; check its cable, and connect again");
    some_port_down_ = false;
    for (const auto& [session, link] : connections_.held()) {
      if (link->closed()) continue;
      const std::optional<Duration> down = link->port_down_for(now);
      some_port_down_ = some_port_down_ || down.has_value();
      if (down.value_or(Duration(0)) < kUnpluggedAfter) continue;
      link->unplugged(why);
      ++work;
    }
    waiting = waiting || some_port_down_;
  }
  port_check_ = waiting ? after(now, kWatchdog) : kNever;
  note_use();
  return work;
}

// Also where no connection is left: only a provider in use has turns.
void VerbsProvider::check_ports_soon() {
  port_check_ = now();
  note_use();
}

void VerbsProvider::drop_unused_devices() {
  std::erase_if(devices_,
                [](const auto& device) { return !device->in_use() && !device->has_buried(); });
}

void VerbsProvider::forget_closed() {
  some_closed_ = false;
  connections_.forget_closed();
  note_use();
}

void VerbsProvider::note_use() {
  bool buried =
      std::any_of(devices_.begin(), devices_.end(), [](const auto& d) { return d->has_buried(); });
  if (buried && port_check_ == kNever) port_check_ = after(context_.now(), kWatchdog);
  in_use_ =
      port_check_ != kNever || connections_.in_use() || !meeting_.empty() || !listeners_.empty();
}

void VerbsProvider::linger(std::unique_ptr<Connection> connection) {
  connection->queue().end_sending();
  connections_.linger(std::move(connection), after(context_.now(), kLingerLimit));
  note_use();
}

size_t VerbsProvider::see_off(Instant now) {
  Nobody nobody;
  size_t gone = connections_.see_off(now, [&](Connection& connection) {
    QueuePair& queue = connection.queue();
    (void)queue.poll(nobody, now, 64);
    return queue.stopped() || queue.failed() || queue.drained() || connection.peer_gone();
  });
  if (gone > 0) note_use();
  return gone;
}

bool VerbsProvider::begin_sleep() {
  bool quiet = !connections_.sessions().has_work();
  for (const auto& [session, link] : connections_.held()) quiet = link->arm() && quiet;
  for (Connection* connection : meeting_) quiet = connection->arm() && quiet;
  for (VerbsListener* listener : listeners_) quiet = listener->arm() && quiet;
  for (const auto& leaving : connections_.leaving())
    quiet = leaving.connection->queue().arm() && quiet;
  slept_since_ = quiet ? now() : kNever;
  announced_before_ = sum_of(&Device::announcements);
  return quiet;
}

Instant VerbsProvider::next_timeout() {
  Instant next = connections_.next_timeout();
  for (VerbsListener* listener : listeners_) next = std::min(next, listener->next_timeout());
  next = std::min(next, port_check_);
  if (connections_.held().empty() && meeting_.empty()) return next;
  // Asleep, from where progress() measures too: a look that comes early counts no miss.
  return std::min(next, after(slept_since_ != kNever ? slept_since_ : context_.now(), kWatchdog));
}

void VerbsProvider::on_device_event(const DeviceEvent& event) noexcept {
  Status why;
  switch (event.type) {
    case IBV_EVENT_QP_ACCESS_ERR:
      peer_access_refused.add();
      why = Status(Code::kAccessDenied, Scope::kEndpoint, kOrigin,
                   "the peer tried to reach memory that it was not granted; see its log");
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
      why = Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                   "the device reports a broken queue pair; connect again");
      break;
    case IBV_EVENT_CQ_ERR:
      why = Status(Code::kInternal, Scope::kEndpoint, kOrigin,
                   "the device reports a completion queue overrun; connect again");
      break;
    case IBV_EVENT_DEVICE_FATAL:
      why = Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                   "the RDMA device has failed or was removed; connect again");
      break;
    case IBV_EVENT_PORT_ERR:
      // Its connections live until the retries say otherwise: a link may come back.
      ports_down.add();
      log(LogLevel::kWarning, "a port of an RDMA device went down");
      some_port_down_ = true;
      return check_ports_soon();
    case IBV_EVENT_PORT_ACTIVE: return check_ports_soon();
    default: return;
  }
  if (event.fatal) check_ports_soon();
  for (const auto& [session, link] : connections_.held()) link->device_failed(event, why);
  for (Connection* connection : meeting_) {
    if (connection->concerned_by(event)) connection->fail(why);
  }
  for (VerbsListener* listener : listeners_) listener->device_failed(event, why);
}

std::string VerbsProvider::explain() const {
  return "usable towards peers that an RDMA device reaches";
}

}  // namespace sluice::verbs
