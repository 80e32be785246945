#include <sluice/shm/path.h>

#include <random>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/proto/hello.h>
#include <sluice/runtime/context_core.h>
#include <sluice/runtime/identity.h>
#include <sluice/shm/properties.h>
#include <sluice/shm/provider.h>
#include <sluice/shm/rendezvous.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::shm {
namespace {

constexpr const char* kOrigin = "shm/path";

// A listener that meets too many at once is called again for so long; then TCP does.
constexpr Duration kCrowdPatience = std::chrono::seconds(1);

Counter chose("select.chose_shm");

// Whether two ends could share memory, from their HELLOs alone: empty, or why not.
std::string obstacle_between(const wire::Hello& ours, const wire::Hello& peer) {
  if (!same_host(ours, peer))
    return "the peer is on another machine, or in another network namespace";
  if (!peer.has_rendezvous) return "the peer offers no shared memory";
  if (ours.network_namespace != peer.network_namespace)
    return "the peer is in another network namespace";
  if (ours.user_namespace != peer.user_namespace) return "the peer is in another user namespace";
  if (ours.uid != peer.uid) return "the peer runs as another user";
  return "";
}

class Met final : public MetPeer {
 public:
  Met(ShmProvider& provider, Meeting meeting) : provider_(provider), meeting_(std::move(meeting)) {}
  void introduce(PeerIntroduction& who) const override {
    who.user_id = meeting_.user.uid;
    who.process_id = meeting_.user.pid;
  }
  Result<std::shared_ptr<EndpointCore>> make_endpoint(const Requirements&,
                                                      const proto::SessionOptions& session,
                                                      std::string reason) override {
    return provider_.make_endpoint(std::move(meeting_), session, std::move(reason));
  }

 private:
  ShmProvider& provider_;
  Meeting meeting_;
};

class Rendezvous final : public PathListener {
 public:
  Rendezvous(ShmProvider& provider, const wire::Uuid& place,
             std::unique_ptr<RendezvousListener> listener)
      : provider_(provider), place_(place), listener_(std::move(listener)) {}
  void announce(int, wire::Hello& ours) override { ours.rendezvous = place_; }
  std::unique_ptr<MetPeer> take_by(const wire::Uuid& token) override {
    Meeting found;
    if (!listener_->take_by(token, found)) return nullptr;
    return std::make_unique<Met>(provider_, std::move(found));
  }

 private:
  ShmProvider& provider_;
  wire::Uuid place_;
  std::unique_ptr<RendezvousListener> listener_;
};

class Choice final : public PathChoice {
 public:
  Choice(ContextCore& context, ShmProvider& provider) : context_(context), provider_(provider) {}

  Task<Result<std::unique_ptr<MetPeer>>> meet(const PathAttempt& attempt) override {
    std::string why_not = unmet(attempt.options.require, shm_properties());
    if (why_not.empty()) why_not = obstacle_between(attempt.ours, attempt.peer);
    if (why_not.empty()) {
      wire::Hello hello = proto::hello_for(context_, attempt.session);
      hello.token = attempt.peer.token;
      hello.has_rendezvous = true;
      hello.rendezvous = attempt.peer.rendezvous;
      // Meeting there proves both mappings.
      const Instant now = context_.refresh_now();
      Result<Meeting> meeting =
          co_await shm::meet(context_, socket_name(attempt.peer.rendezvous), hello,
                             attempt.limit(now), after(now, kCrowdPatience));
      if (meeting.ok())
        co_return std::unique_ptr<MetPeer>(
            std::make_unique<Met>(provider_, std::move(meeting).value()));
      why_not = "the probe failed: " + meeting.status().to_string();
    }
    co_return Status(Code::kUnsupported, Scope::kOperation, kOrigin, std::move(why_not));
  }
  std::string_view why_met() const override {
    return "same host, user and namespaces, and the probe both ways worked";
  }
  // The Unix socket beside the rings reports the peer's end as soon as TCP would.
  std::string_view why_paired() const override {
    return "same host, user and namespaces; the peer chose it";
  }
  bool serves(const ListenOptions& options, std::string& why_not) const override {
    why_not = unmet(options.require, shm_properties());
    return why_not.empty();
  }
  Result<std::unique_ptr<PathListener>> listen(const Address&,
                                               const ListenOptions& options) override {
    wire::Uuid place;
    fill_random(place.bytes);
    SLUICE_TRY(auto listener,
               RendezvousListener::open(context_, socket_name(place),
                                        proto::hello_for(context_, proto::session_options(options)),
                                        {.met_limit = kPairingLimit}));
    return std::unique_ptr<PathListener>(
        std::make_unique<Rendezvous>(provider_, place, std::move(listener)));
  }
  std::string obstacle(const wire::Hello& ours, const wire::Hello& peer) const override {
    return obstacle_between(ours, peer);
  }
  Counter& chosen() override { return chose; }

 private:
  ContextCore& context_;
  ShmProvider& provider_;
};

PathState explain() {
  return {.usable = true,
          .why = "for processes of this user in this network namespace",
          .properties = shm_properties()};
}

std::string trial_address() {
  std::random_device random;
  return "shm:sluice-trial-" + std::to_string(random()) + std::to_string(random());
}

std::unique_ptr<Provider> open(ContextCore& context) {
  return std::make_unique<ShmProvider>(context);
}
std::unique_ptr<PathChoice> choose(ContextCore& context, Provider& provider) {
  return std::make_unique<Choice>(context, static_cast<ShmProvider&>(provider));
}

}  // namespace

const PathDescriptor kPath{
    .path = Path::kShm,
    .scheme = Scheme::kShm,
    .name = "shm",
    .explain = explain,
    .trial_address = trial_address,
    .remedy = "in a container allow memfd_create and pidfd_open (seccomp)",
    .needs = "both ends must run on one machine, as one user, in one network namespace",
    .open = open,
    .choose = choose,
};

}  // namespace sluice::shm
