#include <sluice/select/provider.h>

#include <algorithm>
#include <utility>

#include <sluice/api/identity.h>
#include <sluice/api/sealing.h>
#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/base/log.h>
#include <sluice/proto/hello.h>
#include <sluice/proto/listener_limits.h>
#include <sluice/verbs/provider.h>

namespace sluice::select {
namespace {

constexpr const char* kOrigin = "select";
// A peer that met us over shared memory has this long to say so on its TCP connection.
constexpr Duration kPairingLimit = std::chrono::seconds(5);
constexpr size_t kMostUnpaired = 64;

Counter chose_shm("select.chose_shm");
Counter chose_verbs("select.chose_verbs");
Counter chose_module("select.chose_module");
Counter chose_packet("select.chose_packet");
Counter chose_tcp("select.chose_tcp");

PathProperties shm_properties() {
  return {.path = Path::kShm,
          .capabilities = {Capability::kViews, Capability::kZeroCopyFetch, Capability::kSealed},
          .copies_per_fetch = 0};
}
PathProperties tcp_properties() { return {.path = Path::kTcp, .copies_per_fetch = 2}; }

Counter& chose(Path path) {
  switch (path) {
    case Path::kShm: return chose_shm;
    case Path::kVerbs: return chose_verbs;
    case Path::kModule: return chose_module;
    case Path::kPacket: return chose_packet;
    default: return chose_tcp;
  }
}

void announce(const Address& address, Path path, const std::string& why) {
  chose(path).add();
  if (log_enabled(LogLevel::kInfo)) {
    log(LogLevel::kInfo,
        address.to_string() + " goes by " + std::string(to_string(path)) + ": " + why);
  }
}

}  // namespace

std::string shm_obstacle(const wire::Hello& ours, const wire::Hello& peer) {
  if (!same_host(ours, peer))
    return "the peer is on another machine, or in another network namespace";
  if (!peer.has_rendezvous) return "the peer offers no shared memory";
  if (ours.network_namespace != peer.network_namespace)
    return "the peer is in another network namespace";
  if (ours.user_namespace != peer.user_namespace) return "the peer is in another user namespace";
  if (ours.uid != peer.uid) return "the peer runs as another user";
  return "";
}

// Accepts peers of every path: a greeting that chose TCP is the endpoint, one that chose shared
// memory or RDMA is paired with the meeting of the same token; who chose Ethernet comes by a
// listener of its own.
class SelectListener final : public ListenerCore {
 public:
  SelectListener(SelectProvider& owner, std::unique_ptr<tcp::GreetingListener> greetings,
                 std::unique_ptr<shm::RendezvousListener> rendezvous,
                 std::unique_ptr<verbs::VerbsListener> rdma,
                 std::unique_ptr<EthernetListeners> ethernet,
                 std::shared_ptr<proto::ListenerLimits> limits, const ListenOptions& options)
      : owner_(&owner),
        greetings_(std::move(greetings)),
        rendezvous_(std::move(rendezvous)),
        rdma_(std::move(rdma)),
        ethernet_(std::move(ethernet)),
        limits_(std::move(limits)),
        options_(options) {
    address_ = greetings_->address();
    address_.scheme = Scheme::kSluice;
    owner.listeners_.push_back(this);
    owner.in_use_ = true;
  }
  ~SelectListener() override { close(); }

  std::shared_ptr<EndpointCore> accept() override {
    while (greetings_ != nullptr) {
      std::optional<tcp::Greeting> greeting = greetings_->take();
      if (!greeting) return by_ethernet();
      if (greeting->chosen == Path::kModule || greeting->chosen == Path::kPacket) continue;
      PeerIntroduction who;
      auto endpoint = greeting->chosen == Path::kShm     ? pair(*greeting, who)
                      : greeting->chosen == Path::kVerbs ? pair_verbs(*greeting)
                                                         : by_tcp(std::move(*greeting));
      if (endpoint.ok() && admitted(**endpoint, *greeting, who)) return std::move(endpoint).value();
      if (endpoint.ok()) continue;
      lost_.log(LogLevel::kWarning,
                "lost a peer at " + address() + ": " + endpoint.status().to_string());
    }
    return nullptr;
  }
  std::string address() const override { return address_.to_string(); }
  void close() override {
    if (owner_ == nullptr) return;
    std::erase(owner_->listeners_, this);
    owner_->in_use_ = !owner_->listeners_.empty();
    owner_ = nullptr;
    greetings_.reset();
    rendezvous_.reset();
    rdma_.reset();
    ethernet_.reset();
    unpaired_.clear();
    unpaired_verbs_.clear();
  }

  size_t progress(Instant now) {
    size_t work = greetings_->progress(now);
    std::erase_if(unpaired_, [&](const Unpaired& u) { return u.expires <= now; });
    std::erase_if(unpaired_verbs_, [&](const UnpairedVerbs& u) { return u.expires <= now; });
    return work;
  }
  tcp::GreetingListener& greetings() { return *greetings_; }

 private:
  // A path that was met beside TCP: its peer may be known better now. It keeps the ticket of its
  // greeting. `who`: what the kernel says of it.
  bool admitted(EndpointCore& endpoint, tcp::Greeting& greeting, PeerIntroduction& who) {
    if (greeting.chosen == Path::kTcp) return true;
    auto& session = static_cast<proto::Session&>(endpoint);
    const EndpointInfo info = session.info();
    who.path = info.path.path;
    who.address = info.peer;
    who.incarnation = info.peer_incarnation;
    who.said_process_id = info.peer_pid;
    Status asked = limits_->ask(who);
    if (!asked.ok()) limits_->turn_away(session, asked);
    session.hold(std::move(greeting.ticket));
    return asked.ok();
  }

  struct Unpaired {
    shm::Meeting meeting;
    Instant expires;
  };

  Result<std::shared_ptr<EndpointCore>> pair(tcp::Greeting& greeting, PeerIntroduction& who) {
    shm::Meeting next;
    while (rendezvous_ != nullptr && rendezvous_->take(next)) {
      if (unpaired_.size() >= kMostUnpaired) unpaired_.erase(unpaired_.begin());
      unpaired_.push_back({std::move(next), after(owner_->context_.now(), kPairingLimit)});
    }
    auto found = std::find_if(unpaired_.begin(), unpaired_.end(), [&](const Unpaired& u) {
      return u.meeting.peer.token == greeting.ours.token;
    });
    if (found == unpaired_.end()) {
      return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin,
                    "a peer chose shared memory without having met us there");
    }
    shm::Meeting meeting = std::move(found->meeting);
    unpaired_.erase(found);
    who.user_id = meeting.user.uid;
    who.process_id = meeting.user.pid;
    // The Unix socket beside the rings reports the peer's end as soon as TCP would.
    std::string why = "same host, user and namespaces; the peer chose it";
    announce(address_, Path::kShm, why);
    return owner_->shm_.make_endpoint(std::move(meeting), proto::session_options(options_),
                                      "shm: " + why);
  }

  std::shared_ptr<EndpointCore> by_ethernet() {
    while (ethernet_ != nullptr) {
      std::shared_ptr<EndpointCore> endpoint = ethernet_->accept();
      if (endpoint != nullptr && !limits_->let_in(static_cast<proto::Session&>(*endpoint)))
        continue;
      if (endpoint != nullptr) announce(address_, endpoint->info().path.path, "the peer chose it");
      return endpoint;
    }
    return nullptr;
  }

  struct UnpairedVerbs {
    std::unique_ptr<verbs::Connection> connection;
    Instant expires;
  };

  Result<std::shared_ptr<EndpointCore>> pair_verbs(tcp::Greeting& greeting) {
    while (rdma_ != nullptr) {
      std::unique_ptr<verbs::Connection> next = rdma_->take();
      if (next == nullptr) break;
      if (unpaired_verbs_.size() >= kMostUnpaired) unpaired_verbs_.erase(unpaired_verbs_.begin());
      unpaired_verbs_.push_back({std::move(next), after(owner_->context_.now(), kPairingLimit)});
    }
    auto found = std::find_if(
        unpaired_verbs_.begin(), unpaired_verbs_.end(),
        [&](const UnpairedVerbs& u) { return u.connection->peer().token == greeting.ours.token; });
    if (found == unpaired_verbs_.end()) {
      return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin,
                    "a peer chose RDMA without having met us there");
    }
    std::unique_ptr<verbs::Connection> connection = std::move(found->connection);
    unpaired_verbs_.erase(found);
    // The connection manager reports the peer's end as soon as TCP would, and the device's
    // retries that of its machine.
    std::string why = "an RDMA device reaches the peer, which chose it";
    announce(address_, Path::kVerbs, why);
    return owner_->verbs_.make_endpoint(std::move(connection), options_.require,
                                        proto::session_options(options_), "rdma: " + why);
  }

  Result<std::shared_ptr<EndpointCore>> by_tcp(tcp::Greeting&& greeting) {
    std::string obstacle = shm_obstacle(greeting.ours, greeting.peer);
    // The asker has no rendezvous of its own, so that much is no obstacle here.
    std::string why = "the peer chose it";
    if (!obstacle.empty() && greeting.peer.has_rendezvous) why += "; not shm: " + obstacle;
    if (std::string lacking = unmet(options_.require, tcp_properties()); !lacking.empty()) {
      tcp::refuse(greeting.take_fd(), Code::kUnsupported);
      return Status(Code::kUnsupported, Scope::kEndpoint, kOrigin, lacking);
    }
    announce(address_, Path::kTcp, why);
    return owner_->tcp_.make_endpoint(std::move(greeting), proto::session_options(options_),
                                      "tcp: " + why);
  }

  SelectProvider* owner_;
  std::unique_ptr<tcp::GreetingListener> greetings_;
  std::unique_ptr<shm::RendezvousListener> rendezvous_;  // null: not served
  std::unique_ptr<verbs::VerbsListener> rdma_;           // null: no RDMA here
  std::unique_ptr<EthernetListeners> ethernet_;          // null: not wished
  std::shared_ptr<proto::ListenerLimits> limits_;
  ListenOptions options_;
  Address address_;
  std::vector<Unpaired> unpaired_;
  std::vector<UnpairedVerbs> unpaired_verbs_;
  LogThrottle lost_;
};

SelectProvider::~SelectProvider() {
  while (!listeners_.empty()) listeners_.back()->close();
}

// One connect(): what is known of the peer, and why each path was not taken.
struct SelectProvider::Attempt {
  const Address& address;
  const ConnectOptions& options;
  proto::SessionOptions session;
  Instant deadline;
  tcp::Greeting greeting;
  std::string why_not;

  // What was tried and failed leaves at least half of the time to the next path.
  Instant limit(Context& context) const {
    return std::min(deadline,
                    after(context.refresh_now(),
                          std::max<Duration>(options.timeout / 2, std::chrono::milliseconds(1))));
  }
  void note(std::string_view path, const std::string& obstacle) {
    why_not += (why_not.empty() ? "not " : "; not ") + std::string(path) + ": " + obstacle;
  }
};

Result<std::shared_ptr<EndpointCore>> SelectProvider::connect(const Address& address,
                                                              const ConnectOptions& options) {
  proto::SessionOptions session = proto::session_options(options);
  Instant deadline = after(context_.refresh_now(), options.timeout);
  SLUICE_TRY(tcp::Greeting greeting,
             tcp::greet(context_, address, proto::hello_for(context_, session), deadline));
  fault_point("select.greeted");
  Attempt attempt{.address = address,
                  .options = options,
                  .session = session,
                  .deadline = deadline,
                  .greeting = std::move(greeting),
                  .why_not = ""};
  for (auto path : {&SelectProvider::try_shm, &SelectProvider::try_verbs,
                    &SelectProvider::try_module, &SelectProvider::try_packet}) {
    // kUnsupported: not this path, and nothing is lost. Anything else ends the attempt.
    Result<std::shared_ptr<EndpointCore>> endpoint = (this->*path)(attempt);
    if (endpoint.ok() || endpoint.code() != Code::kUnsupported) return endpoint;
  }
  if (std::string lacking = unmet(options.require, tcp_properties()); !lacking.empty()) {
    tcp::refuse(attempt.greeting.take_fd(), Code::kUnsupported);
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  "no path to " + address.to_string() +
                      " meets the requirements: " + attempt.why_not + "; not tcp: " + lacking);
  }
  SLUICE_RETURN_IF_ERROR(tcp::choose(attempt.greeting, Path::kTcp));
  announce(address, Path::kTcp, attempt.why_not);
  return tcp_.make_endpoint(std::move(attempt.greeting), session, "tcp: " + attempt.why_not);
}

Result<std::shared_ptr<EndpointCore>> SelectProvider::try_shm(Attempt& attempt) {
  tcp::Greeting& greeting = attempt.greeting;
  std::string obstacle = unmet(attempt.options.require, shm_properties());
  if (obstacle.empty()) obstacle = shm_obstacle(greeting.ours, greeting.peer);
  if (obstacle.empty()) {
    wire::Hello hello = proto::hello_for(context_, attempt.session);
    hello.token = greeting.peer.token;
    hello.has_rendezvous = true;
    hello.rendezvous = greeting.peer.rendezvous;
    // Meeting there proves both mappings.
    Result<shm::Meeting> meeting = shm::meet(context_, shm::socket_name(greeting.peer.rendezvous),
                                             hello, attempt.limit(context_));
    if (meeting.ok()) {
      fault_point("select.met");
      SLUICE_RETURN_IF_ERROR(tcp::choose(greeting, Path::kShm));
      std::string why = "same host, user and namespaces, and the probe both ways worked";
      announce(attempt.address, Path::kShm, why);
      return shm_.make_endpoint(std::move(meeting).value(), attempt.session, "shm: " + why);
    }
    obstacle = "the probe failed: " + meeting.status().to_string();
  }
  attempt.note("shm", obstacle);
  return Status(Code::kUnsupported, Scope::kOperation, kOrigin, obstacle);
}

Result<std::shared_ptr<EndpointCore>> SelectProvider::try_verbs(Attempt& attempt) {
  tcp::Greeting& greeting = attempt.greeting;
  std::string obstacle;
  if (std::string unsealed =
          unmet({.sealed = attempt.options.require.sealed}, {.path = Path::kVerbs});
      !unsealed.empty()) {
    obstacle = unsealed;
  } else if (greeting.peer.rdma_port == 0 || !greeting.peer.has_rendezvous) {
    obstacle = "the peer has no RDMA device";
  } else if (!verbs::rdma_devices_present()) {
    obstacle = "this machine has no RDMA device";
  } else {
    wire::Hello hello = proto::hello_for_strangers(context_, attempt.session);
    hello.token = greeting.peer.token;
    hello.has_rendezvous = true;
    // The address that TCP reached: an RDMA device that has it is meant to be used.
    std::string host = tcp::peer_address(greeting.fd()).host();
    auto connection = verbs_.meet(host, greeting.peer.rdma_port, hello, attempt.limit(context_));
    if (!connection.ok()) {
      obstacle = "the probe failed: " + connection.status().to_string();
    } else {
      obstacle = unmet(attempt.options.require,
                       verbs::verbs_traits((*connection)->queue().device().limits(), 0).properties);
    }
    if (obstacle.empty()) {
      fault_point("select.met");
      SLUICE_RETURN_IF_ERROR(tcp::choose(greeting, Path::kVerbs));
      std::string why = "an RDMA device reaches the peer, and the probe both ways worked";
      announce(attempt.address, Path::kVerbs, attempt.why_not + "; " + why);
      return verbs_.make_endpoint(std::move(connection).value(), attempt.options.require,
                                  attempt.session, "rdma: " + why + "; " + attempt.why_not);
    }
  }
  attempt.note("rdma", obstacle);
  return Status(Code::kUnsupported, Scope::kOperation, kOrigin, obstacle);
}

Result<std::shared_ptr<EndpointCore>> SelectProvider::try_module(Attempt& attempt) {
  return try_ethernet(attempt, Path::kModule, "kmod");
}
Result<std::shared_ptr<EndpointCore>> SelectProvider::try_packet(Attempt& attempt) {
  return try_ethernet(attempt, Path::kPacket, "l2");
}

Result<std::shared_ptr<EndpointCore>> SelectProvider::try_ethernet(Attempt& attempt, Path path,
                                                                   std::string_view name) {
  if (!ethernet_wanted(attempt.options.ethernet))
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin, "not wished");
  proto::SessionOptions session = attempt.session;
  session.why = "the peer is a neighbour, and the probe both ways worked; " + attempt.why_not;
  Duration patience =
      (attempt.deadline - context_.refresh_now()) / 2;  // the other half is for the next path
  auto endpoint = ethernet_caller_.connect(path, attempt.greeting.fd(), attempt.greeting.peer,
                                           patience, attempt.options, session);
  if (!endpoint.ok()) {
    attempt.note(name, std::string(endpoint.status().detail()));
    return endpoint;
  }
  fault_point("select.met");
  // The TCP connection has done its part: the peer has met us already, and either carrier finds out
  // by itself that it is gone.
  (void)tcp::choose(attempt.greeting, path);
  announce(attempt.address, path, attempt.why_not);
  return endpoint;
}

// At any port of the same address. Null, with a line in the log, where it cannot be.
std::unique_ptr<verbs::VerbsListener> SelectProvider::listen_by_rdma(const Address& address,
                                                                     const ListenOptions& options) {
  if (!verbs::rdma_devices_present()) return nullptr;
  auto listener =
      verbs_.open_listener(address.host, 0, options.backlog,
                           proto::hello_for_strangers(context_, proto::session_options(options)));
  if (listener.ok()) return std::move(listener).value();
  log(LogLevel::kInfo, "not listening by RDMA: " + listener.status().to_string());
  return nullptr;
}

// What a listener serves: the paths that can do what it requires.
struct SelectProvider::Served {
  std::vector<Path> paths;
  std::string why_not;  // of the others
  bool has(Path path) const { return std::find(paths.begin(), paths.end(), path) != paths.end(); }
  void add(const ListenOptions& options, const PathProperties& properties) {
    std::string lacking = unmet(options.require, properties);
    if (lacking.empty())
      paths.push_back(properties.path);
    else
      why_not += (why_not.empty() ? "" : "; ") + lacking;
  }
};

SelectProvider::Served SelectProvider::served(const ListenOptions& options) {
  Served served;
  served.add(options, tcp_properties());
  served.add(options, shm_properties());
  // What a device copies is known when its connection is.
  const Requirements of_any_device{.sealed = options.require.sealed};
  if (verbs::rdma_devices_present() && unmet(of_any_device, {.path = Path::kVerbs}).empty())
    served.paths.push_back(Path::kVerbs);
  if (ethernet_wanted(options.ethernet)) {
    const bool secret = secret_is_set(options.secret_file);
    served.add(options, ethernet_properties(Path::kModule, secret));
    served.add(options, ethernet_properties(Path::kPacket, secret));
  }
  return served;
}

Result<std::unique_ptr<ListenerCore>> SelectProvider::listen(const Address& address,
                                                             const ListenOptions& options) {
  proto::SessionOptions session = proto::session_options(options);
  Served serves = served(options);
  if (serves.paths.empty()) {
    return Status(
        Code::kUnsupported, Scope::kOperation, kOrigin,
        "no path to " + address.to_string() + " meets the requirements: " + serves.why_not);
  }
  wire::Uuid rendezvous;
  fill_random(rendezvous.bytes);
  // If shared memory is not served, nobody listens there, and callers try the next path.
  std::unique_ptr<shm::RendezvousListener> meetings;
  if (serves.has(Path::kShm)) {
    SLUICE_TRY(meetings, shm::RendezvousListener::open(context_, shm::socket_name(rendezvous),
                                                       proto::hello_for(context_, session),
                                                       {.met_limit = kPairingLimit}));
  }
  std::unique_ptr<verbs::VerbsListener> rdma =
      serves.has(Path::kVerbs) ? listen_by_rdma(address, options) : nullptr;
  const uint16_t rdma_port = rdma != nullptr ? rdma->port() : 0;
  if (rdma == nullptr) std::erase(serves.paths, Path::kVerbs);
  const bool by_carriers = serves.has(Path::kModule) || serves.has(Path::kPacket);
  std::unique_ptr<EthernetListeners> ethernet =
      by_carriers ? std::make_unique<EthernetListeners>(ethernet_, options) : nullptr;
  auto prepare = [rendezvous, rdma_port, by_ethernet = ethernet.get()](wire::Hello& ours, int fd) {
    if (by_ethernet != nullptr) by_ethernet->announce(fd, ours);
    ours.has_rendezvous = true;
    ours.rendezvous = rendezvous;
    ours.rdma_port = rdma_port;
    fill_random(ours.token.bytes);
  };
  auto limits = std::make_shared<proto::ListenerLimits>(context_, options, address.to_string());
  tcp::GreetingOptions greeting;
  greeting.backlog = options.backlog;
  greeting.paths = serves.paths;
  greeting.admit = [limits](const PeerIdentity& identity, const PeerIntroduction& who) {
    return limits->admit(identity, who);
  };
  SLUICE_TRY(auto greetings,
             tcp::GreetingListener::open(context_, address, proto::hello_for(context_, session),
                                         greeting, prepare));
  return std::unique_ptr<ListenerCore>(std::make_unique<SelectListener>(
      *this, std::move(greetings), std::move(meetings), std::move(rdma), std::move(ethernet),
      std::move(limits), options));
}

size_t SelectProvider::progress(Instant now) {
  size_t work = 0;
  for (SelectListener* listener : listeners_) work += listener->progress(now);
  return work;
}

bool SelectProvider::begin_sleep() {
  for (SelectListener* listener : listeners_) {
    if (listener->greetings().has_work()) return false;
  }
  return true;
}

Instant SelectProvider::next_timeout() {
  Instant next = kNever;
  for (SelectListener* listener : listeners_)
    next = std::min(next, listener->greetings().next_timeout());
  return next;
}

}  // namespace sluice::select
