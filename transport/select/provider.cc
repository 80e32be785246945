#include <sluice/select/provider.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/base/log.h>
#include <sluice/proto/hello.h>
#include <sluice/proto/listener_limits.h>
#include <sluice/runtime/awaits.h>
#include <sluice/runtime/identity.h>
#include <sluice/tcp/greeting_listener.h>
#include <sluice/tcp/path.h>

namespace sluice::select {
namespace {

constexpr const char* kOrigin = "select";

Counter chose_tcp("select.chose_tcp");

PathProperties tcp_properties() { return tcp::kPath.explain().properties; }

void announce(const Address& address, Counter& chosen, Path path, const std::string& why) {
  chosen.add();
  if (log_enabled(LogLevel::kInfo)) {
    log(LogLevel::kInfo,
        address.to_string() + " goes by " + std::string(to_string(path)) + ": " + why);
  }
}

std::string joined(const std::string& a, std::string_view b) {
  return a + (a.empty() || b.empty() ? "" : "; ") + std::string(b);
}

// One path that a listener serves.
struct Served {
  const PathDescriptor* path;
  PathChoice* choice;
  std::unique_ptr<PathListener> listener;
};

}  // namespace

// Accepts peers of every path: a greeting that chose TCP is the endpoint, one that chose a path
// that pairs is paired with the meeting of the same token; who chose another comes by a listener
// of its own.
class SelectListener final : public ListenerCore {
 public:
  SelectListener(SelectProvider& owner, std::unique_ptr<tcp::GreetingListener> greetings,
                 std::vector<Served> served, std::shared_ptr<proto::ListenerLimits> limits,
                 const ListenOptions& options)
      : owner_(&owner),
        greetings_(std::move(greetings)),
        served_(std::move(served)),
        limits_(std::move(limits)),
        options_(options) {
    address_ = greetings_->address();
    address_.scheme = Scheme::kSluice;
    limits_->set_address(address_.to_string());
    owner.listeners_.push_back(this);
    owner.in_use_ = true;
  }
  ~SelectListener() override { close(); }

  std::shared_ptr<EndpointCore> accept() override {
    while (greetings_ != nullptr) {
      std::optional<tcp::Greeting> greeting = greetings_->take();
      if (!greeting) return without_pairing();
      Served* served = served_by(greeting->chosen);
      if (served != nullptr && !served->listener->pairs()) continue;
      const std::string name = greeting->peer_name();
      PeerIntroduction who;
      auto endpoint =
          served != nullptr ? pair(*served, *greeting, who) : by_tcp(std::move(*greeting));
      if (endpoint.ok() && admitted(**endpoint, *greeting, who)) return std::move(endpoint).value();
      if (endpoint.ok()) continue;
      lost_.log(LogLevel::kWarning, "lost the peer " + name + " at " + address() + ": " +
                                        endpoint.status().to_string());
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
    served_.clear();
  }

  size_t progress(Instant now) { return greetings_->progress(now); }
  tcp::GreetingListener& greetings() { return *greetings_; }

 private:
  // Null: TCP.
  Served* served_by(Path path) {
    auto found = std::find_if(served_.begin(), served_.end(),
                              [path](const Served& s) { return s.path->path == path; });
    return found != served_.end() ? &*found : nullptr;
  }

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

  Result<std::shared_ptr<EndpointCore>> pair(Served& served, tcp::Greeting& greeting,
                                             PeerIntroduction& who) {
    std::unique_ptr<MetPeer> met = served.listener->take_by(greeting.ours.token);
    const std::string name(served.path->name);
    if (met == nullptr) {
      return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin,
                    "a peer chose " + name + " without having met us there");
    }
    met->introduce(who);
    const std::string why(served.choice->why_paired());
    announce(address_, served.choice->chosen(), served.path->path, why);
    return met->make_endpoint(options_.require, proto::session_options(options_),
                              name + ": " + why);
  }

  std::shared_ptr<EndpointCore> without_pairing() {
    for (Served& served : served_) {
      while (std::shared_ptr<EndpointCore> endpoint = served.listener->accept()) {
        if (!limits_->let_in(static_cast<proto::Session&>(*endpoint))) continue;
        announce(address_, served.choice->chosen(), endpoint->info().path.path,
                 std::string(served.choice->why_paired()));
        return endpoint;
      }
    }
    return nullptr;
  }

  Result<std::shared_ptr<EndpointCore>> by_tcp(tcp::Greeting&& greeting) {
    std::string why = "the peer chose it";
    // The asker has no rendezvous of its own, so that much is no obstacle here.
    for (const Candidate& candidate : owner_->candidates_) {
      std::string obstacle = candidate.choice->obstacle(greeting.ours, greeting.peer);
      if (!obstacle.empty() && greeting.peer.has_rendezvous)
        why += "; not " + std::string(candidate.path->name) + ": " + obstacle;
    }
    if (std::string lacking = unmet(options_.require, tcp_properties()); !lacking.empty()) {
      tcp::refuse(greeting.take_fd(), Code::kUnsupported);
      return Status(Code::kUnsupported, Scope::kEndpoint, kOrigin, lacking);
    }
    announce(address_, chose_tcp, Path::kTcp, why);
    return owner_->tcp_.make_endpoint(std::move(greeting), proto::session_options(options_),
                                      "tcp: " + why);
  }

  SelectProvider* owner_;
  std::unique_ptr<tcp::GreetingListener> greetings_;
  std::vector<Served> served_;
  std::shared_ptr<proto::ListenerLimits> limits_;
  ListenOptions options_;
  Address address_;
  LogThrottle lost_;
};

SelectProvider::~SelectProvider() {
  while (!listeners_.empty()) listeners_.back()->close();
}

// One connect(): what is known of the peer, and why each path was not taken.
struct SelectProvider::Attempt {
  const Address& address;
  tcp::Greeting& greeting;
  PathAttempt seen;

  void note(std::string_view path, std::string_view obstacle) {
    if (obstacle.empty()) return;
    seen.why_not += seen.why_not.empty() ? "not " : "; not ";
    seen.why_not += std::string(path) + ": " + std::string(obstacle);
  }
};

Task<Result<std::shared_ptr<EndpointCore>>> SelectProvider::start_connect(
    const Address& address, const ConnectOptions& options) {
  const Instant deadline = after(context_.refresh_now(), options.timeout);
  const proto::SessionOptions session = proto::session_options(options);
  SLUICE_CO_TRY(tcp::Greeting greeting, co_await tcp::start_greet(context_.awaits(), address,
                                                                  tcp_.hello(session), deadline));
  fault_point("select.greeted");
  const std::string host = tcp::peer_address(greeting.fd()).host();
  Attempt attempt{.address = address,
                  .greeting = greeting,
                  .seen = {.options = options,
                           .session = session,
                           .deadline = deadline,
                           .fd = greeting.fd(),
                           .host = host,
                           .ours = greeting.ours,
                           .peer = greeting.peer,
                           .why_not = ""}};
  for (const Candidate& candidate : candidates_) {
    // kUnsupported: not this path, and nothing is lost. Anything else ends the attempt.
    Result<std::shared_ptr<EndpointCore>> endpoint = co_await try_path(candidate, attempt);
    if (endpoint.ok() || endpoint.code() != Code::kUnsupported) co_return std::move(endpoint);
    SLUICE_CO_RETURN_IF_ERROR(context_.awaits().check());
  }
  const std::string& why_not = attempt.seen.why_not;
  if (std::string lacking = unmet(options.require, tcp_properties()); !lacking.empty()) {
    tcp::refuse(greeting.take_fd(), Code::kUnsupported);
    co_return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                     "no path to " + address.to_string() + " meets the requirements: " + why_not +
                         "; not tcp: " + lacking);
  }
  SLUICE_CO_RETURN_IF_ERROR(tcp::choose(greeting, Path::kTcp));
  announce(address, chose_tcp, Path::kTcp, why_not);
  co_return tcp_.make_endpoint(std::move(greeting), session, "tcp: " + why_not);
}

Task<Result<std::shared_ptr<EndpointCore>>> SelectProvider::try_path(const Candidate& candidate,
                                                                     Attempt& attempt) {
  const PathDescriptor& path = *candidate.path;
  Result<std::unique_ptr<MetPeer>> met = co_await candidate.choice->meet(attempt.seen);
  if (!met.ok()) {
    if (met.code() == Code::kUnsupported) attempt.note(path.name, met.status().detail());
    co_return met.status();
  }
  fault_point("select.met");
  // Where the peer has met us already the TCP connection has done its part: either end finds out
  // by the path alone that the other is gone.
  Status told = tcp::choose(attempt.greeting, path.path);
  if (!told.ok() && !(*met)->is_settled()) co_return told;
  const std::string why(candidate.choice->why_met());
  const std::string& why_not = attempt.seen.why_not;
  announce(attempt.address, candidate.choice->chosen(), path.path, joined(why_not, why));
  co_return (*met)->make_endpoint(attempt.seen.options.require, attempt.seen.session,
                                  std::string(path.name) + ": " + joined(why, why_not));
}

Result<std::unique_ptr<ListenerCore>> SelectProvider::listen(const Address& address,
                                                             const ListenOptions& options) {
  proto::SessionOptions session = proto::session_options(options);
  std::vector<Path> paths;
  std::string why_not = unmet(options.require, tcp_properties());
  if (why_not.empty()) paths.push_back(Path::kTcp);
  std::vector<const Candidate*> able;
  for (const Candidate& candidate : candidates_) {
    std::string lacking;
    if (candidate.choice->serves(options, lacking)) able.push_back(&candidate);
    why_not = joined(why_not, lacking);
  }
  if (paths.empty() && able.empty()) {
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  "no path to " + address.to_string() + " meets the requirements: " + why_not);
  }
  std::vector<Served> served;
  for (const Candidate* candidate : able) {
    SLUICE_TRY(std::unique_ptr<PathListener> listener, candidate->choice->listen(address, options));
    if (listener == nullptr) continue;
    paths.push_back(candidate->path->path);
    served.push_back({.path = candidate->path,
                      .choice = candidate->choice.get(),
                      .listener = std::move(listener)});
  }
  // If shared memory is not served, nobody listens there, and callers try the next path.
  wire::Uuid nowhere;
  fill_random(nowhere.bytes);
  std::vector<PathListener*> listeners;
  for (const Served& s : served) listeners.push_back(s.listener.get());
  auto prepare = [nowhere, listeners](wire::Hello& ours, int fd) {
    ours.has_rendezvous = true;
    ours.rendezvous = nowhere;
    fill_random(ours.token.bytes);
    for (PathListener* listener : listeners) listener->announce(fd, ours);
  };
  auto limits = std::make_shared<proto::ListenerLimits>(context_, options, address.to_string());
  tcp::GreetingOptions greeting;
  greeting.backlog = options.backlog;
  greeting.paths = paths;
  greeting.admit = [limits](const PeerIdentity& identity, const PeerIntroduction& who) {
    return limits->admit(identity, who);
  };
  tcp_.serve_streams(greeting, limits);
  SLUICE_TRY(auto greetings,
             tcp::GreetingListener::open(context_, address, proto::hello_for(context_, session),
                                         greeting, prepare));
  return std::unique_ptr<ListenerCore>(std::make_unique<SelectListener>(
      *this, std::move(greetings), std::move(served), std::move(limits), options));
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
