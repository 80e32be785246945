#include <sluice/select/provider.h>

#include <algorithm>
#include <utility>

#include <sluice/api/identity.h>
#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/base/log.h>

namespace sluice::select {
namespace {

constexpr const char* kOrigin = "select";
// A peer that met us over shared memory has this long to say so on its TCP connection.
constexpr Duration kPairingLimit = std::chrono::seconds(5);
constexpr size_t kMostUnpaired = 64;

Counter chose_shm("select.chose_shm");
Counter chose_tcp("select.chose_tcp");

template <typename Options>
proto::SessionOptions session_options(const Options& options) {
  proto::SessionOptions session;
  session.operation_timeout = options.operation_timeout;
  session.silence_limit = options.silence_limit;
  return session;
}

PathProperties shm_properties() {
  return {.path = Path::kShm, .capabilities = {Capability::kViews, Capability::kZeroCopyFetch}, .copies_per_fetch = 0};
}
PathProperties tcp_properties() { return {.path = Path::kTcp, .copies_per_fetch = 2}; }

void announce(const Address& address, Path path, const std::string& why) {
  (path == Path::kShm ? chose_shm : chose_tcp).add();
  if (log_enabled(LogLevel::kInfo)) {
    log(LogLevel::kInfo, address.to_string() + " goes by " + std::string(to_string(path)) + ": " + why);
  }
}

}  // namespace

std::string shm_obstacle(const wire::Hello& ours, const wire::Hello& peer) {
  if (!same_host(ours, peer)) return "the peer is on another machine";
  if (!peer.has_rendezvous) return "the peer offers no shared memory";
  if (ours.network_namespace != peer.network_namespace) return "the peer is in another network namespace";
  if (ours.user_namespace != peer.user_namespace) return "the peer is in another user namespace";
  if (ours.uid != peer.uid) return "the peer runs as another user";
  return "";
}

// Accepts peers of every path: a greeting that chose TCP is the endpoint, one that chose
// shared memory is paired with the meeting of the same token.
class SelectListener final : public ListenerCore {
 public:
  SelectListener(SelectProvider& owner, std::unique_ptr<tcp::GreetingListener> greetings,
                 std::unique_ptr<shm::RendezvousListener> rendezvous, const ListenOptions& options)
      : owner_(&owner), greetings_(std::move(greetings)), rendezvous_(std::move(rendezvous)), options_(options) {
    address_ = greetings_->address();
    address_.scheme = Scheme::kSluice;
    owner.listeners_.push_back(this);
    owner.in_use_ = true;
  }
  ~SelectListener() override { close(); }

  std::shared_ptr<EndpointCore> accept() override {
    while (greetings_ != nullptr) {
      std::optional<tcp::Greeting> greeting = greetings_->take();
      if (!greeting) return nullptr;
      auto endpoint = greeting->chosen == Path::kShm ? pair(*greeting) : by_tcp(std::move(*greeting));
      if (endpoint.ok()) return std::move(endpoint).value();
      log(LogLevel::kWarning, "lost a peer at " + address() + ": " + endpoint.status().to_string());
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
    unpaired_.clear();
  }

  size_t progress(Instant now) {
    size_t work = greetings_->progress(now);
    std::erase_if(unpaired_, [&](const Unpaired& u) { return u.expires <= now; });
    return work;
  }
  tcp::GreetingListener& greetings() { return *greetings_; }

 private:
  struct Unpaired {
    shm::Meeting meeting;
    Instant expires;
  };

  Result<std::shared_ptr<EndpointCore>> pair(tcp::Greeting& greeting) {
    shm::Meeting next;
    while (rendezvous_->take(next)) {
      if (unpaired_.size() >= kMostUnpaired) unpaired_.erase(unpaired_.begin());
      unpaired_.push_back({std::move(next), after(owner_->context_.now(), kPairingLimit)});
    }
    auto found = std::find_if(unpaired_.begin(), unpaired_.end(),
                              [&](const Unpaired& u) { return u.meeting.peer.token == greeting.ours.token; });
    if (found == unpaired_.end()) {
      return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, "a peer chose shared memory without having met us there");
    }
    shm::Meeting meeting = std::move(found->meeting);
    unpaired_.erase(found);
    // The Unix socket beside the rings reports the peer's end as soon as TCP would.
    std::string why = "same host, user and namespaces; the peer chose it";
    announce(address_, Path::kShm, why);
    return owner_->shm_.make_endpoint(std::move(meeting), session_options(options_), "shm: " + why);
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
    return owner_->tcp_.make_endpoint(std::move(greeting), session_options(options_), "tcp: " + why);
  }

  SelectProvider* owner_;
  std::unique_ptr<tcp::GreetingListener> greetings_;
  std::unique_ptr<shm::RendezvousListener> rendezvous_;
  ListenOptions options_;
  Address address_;
  std::vector<Unpaired> unpaired_;
};

SelectProvider::~SelectProvider() {
  while (!listeners_.empty()) listeners_.back()->close();
}

Result<std::shared_ptr<EndpointCore>> SelectProvider::connect(const Address& address, const ConnectOptions& options) {
  proto::SessionOptions session = session_options(options);
  Instant deadline = after(context_.refresh_now(), options.timeout);
  SLUICE_TRY(tcp::Greeting greeting, tcp::greet(context_, address, tcp::hello_for(context_, session), deadline));
  fault_point("select.greeted");
  std::string not_shm = unmet(options.require, shm_properties());
  if (not_shm.empty()) not_shm = shm_obstacle(greeting.ours, greeting.peer);
  if (not_shm.empty()) {
    wire::Hello hello = shm::shm_hello(context_, session);
    hello.token = greeting.peer.token;
    hello.has_rendezvous = true;
    hello.rendezvous = greeting.peer.rendezvous;
    // Meeting there proves both mappings; half of the time is left for TCP.
    Instant limit = std::min(deadline, after(context_.refresh_now(), std::max<Duration>(options.timeout / 2, std::chrono::milliseconds(1))));
    Result<shm::Meeting> meeting = shm::meet(context_, shm::socket_name(greeting.peer.rendezvous), hello, limit);
    if (meeting.ok()) {
      fault_point("select.met");
      SLUICE_RETURN_IF_ERROR(tcp::choose(greeting, Path::kShm));
      std::string why = "same host, user and namespaces, and the probe both ways worked";
      announce(address, Path::kShm, why);
      return shm_.make_endpoint(std::move(meeting).value(), session, "shm: " + why);
    }
    not_shm = "the probe failed: " + meeting.status().to_string();
  }
  if (std::string lacking = unmet(options.require, tcp_properties()); !lacking.empty()) {
    tcp::refuse(greeting.take_fd(), Code::kUnsupported);
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  "no path to " + address.to_string() + " meets the requirements: not shm: " + not_shm + "; not tcp: " + lacking);
  }
  SLUICE_RETURN_IF_ERROR(tcp::choose(greeting, Path::kTcp));
  std::string why = "not shm: " + not_shm;
  announce(address, Path::kTcp, why);
  return tcp_.make_endpoint(std::move(greeting), session, "tcp: " + why);
}

Result<std::unique_ptr<ListenerCore>> SelectProvider::listen(const Address& address, const ListenOptions& options) {
  proto::SessionOptions session = session_options(options);
  wire::Uuid rendezvous;
  fill_random(rendezvous.bytes);
  wire::Hello shm_ours = shm::shm_hello(context_, session);
  SLUICE_TRY(auto meetings, shm::RendezvousListener::open(context_, shm::socket_name(rendezvous), shm_ours));
  tcp::GreetingOptions greeting;
  greeting.backlog = options.backlog;
  greeting.paths = {Path::kTcp, Path::kShm};
  auto prepare = [rendezvous](wire::Hello& ours) {
    ours.has_rendezvous = true;
    ours.rendezvous = rendezvous;
    fill_random(ours.token.bytes);
  };
  SLUICE_TRY(auto greetings, tcp::GreetingListener::open(context_, address, tcp::hello_for(context_, session), greeting, prepare));
  return std::unique_ptr<ListenerCore>(
      std::make_unique<SelectListener>(*this, std::move(greetings), std::move(meetings), options));
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
  for (SelectListener* listener : listeners_) next = std::min(next, listener->greetings().next_timeout());
  return next;
}

}  // namespace sluice::select
