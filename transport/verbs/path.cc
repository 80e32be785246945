#include <sluice/verbs/path.h>

#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/log.h>
#include <sluice/proto/hello.h>
#include <sluice/runtime/context_core.h>
#include <sluice/spi/endpoint_core.h>
#include <sluice/verbs/devices.h>
#include <sluice/verbs/link.h>
#include <sluice/verbs/provider.h>

namespace sluice::verbs {
namespace {

constexpr const char* kOrigin = "verbs/path";

Counter chose("select.chose_verbs");

class Met final : public MetPeer {
 public:
  Met(VerbsProvider& provider, std::unique_ptr<Connection> connection)
      : provider_(provider), connection_(std::move(connection)) {}
  Result<std::shared_ptr<EndpointCore>> make_endpoint(const Requirements& require,
                                                      const proto::SessionOptions& session,
                                                      std::string reason) override {
    return provider_.make_endpoint(std::move(connection_), require, session, std::move(reason));
  }

 private:
  VerbsProvider& provider_;
  std::unique_ptr<Connection> connection_;
};

class AtAnyPort final : public PathListener {
 public:
  AtAnyPort(VerbsProvider& provider, std::unique_ptr<VerbsListener> listener)
      : provider_(provider), listener_(std::move(listener)) {}
  void announce(int, wire::Hello& ours) override { ours.rdma_port = listener_->port(); }
  std::unique_ptr<MetPeer> take_by(const wire::Uuid& token) override {
    std::unique_ptr<Connection> met = listener_->take_by(token);
    if (met == nullptr) return nullptr;
    return std::make_unique<Met>(provider_, std::move(met));
  }

 private:
  VerbsProvider& provider_;
  std::unique_ptr<VerbsListener> listener_;
};

// What a device copies is known when its connection is.
std::string lacking_of_any_device(const Requirements& require) {
  return unmet({.sealed = require.sealed, .path = require.path}, {.path = Path::kVerbs});
}

class Choice final : public PathChoice {
 public:
  Choice(ContextCore& context, VerbsProvider& provider) : context_(context), provider_(provider) {}

  Task<Result<std::unique_ptr<MetPeer>>> meet(const PathAttempt& attempt) override {
    std::string why_not = lacking_of_any_device(attempt.options.require);
    std::unique_ptr<Connection> connection;
    if (!why_not.empty()) {
      // Nobody is asked.
    } else if (attempt.peer.rdma_port == 0 || !attempt.peer.has_rendezvous) {
      why_not = "the peer has no RDMA device";
    } else if (!rdma_devices_present()) {
      why_not = "this machine has no RDMA device";
    } else {
      wire::Hello hello = proto::hello_for_strangers(context_, attempt.session);
      hello.token = attempt.peer.token;
      hello.has_rendezvous = true;
      // The address that TCP reached: an RDMA device that has it is meant to be used.
      auto met = co_await provider_.meet(attempt.host, attempt.peer.rdma_port, hello,
                                         attempt.limit(context_.refresh_now()));
      if (met.ok()) {
        connection = std::move(met).value();
        why_not = unmet(attempt.options.require,
                        verbs_traits(connection->queue().device().limits(), 0).properties);
        if (!why_not.empty()) {
          connection.reset();
          provider_.drop_unused_devices();
        }
      } else {
        why_not = "the probe failed: " + met.status().to_string();
      }
    }
    if (!why_not.empty())
      co_return Status(Code::kUnsupported, Scope::kOperation, kOrigin, std::move(why_not));
    co_return std::unique_ptr<MetPeer>(std::make_unique<Met>(provider_, std::move(connection)));
  }
  std::string_view why_met() const override {
    return "an RDMA device reaches the peer, and the probe both ways worked";
  }
  // The connection manager reports the peer's end as soon as TCP would, and the device's retries
  // that of its machine.
  std::string_view why_paired() const override {
    return "an RDMA device reaches the peer, which chose it";
  }
  bool serves(const ListenOptions& options, std::string&) const override {
    return rdma_devices_present() && lacking_of_any_device(options.require).empty();
  }
  Result<std::unique_ptr<PathListener>> listen(const Address& address,
                                               const ListenOptions& options) override {
    auto listener = provider_.open_listener(
        address.host, 0, options.backlog,
        proto::hello_for_strangers(context_, proto::session_options(options)), kPairingLimit);
    if (listener.ok())
      return std::unique_ptr<PathListener>(
          std::make_unique<AtAnyPort>(provider_, std::move(listener).value()));
    log(LogLevel::kInfo, "not listening by RDMA: " + listener.status().to_string());
    return std::unique_ptr<PathListener>();
  }
  Counter& chosen() override { return chose; }

 private:
  ContextCore& context_;
  VerbsProvider& provider_;
};

PathState explain() {
  Survey survey = survey_devices();
  PathState state{
      .usable = survey.usable(), .why = survey.obstacle, .properties = {.path = Path::kVerbs}};
  if (!state.usable) return state;
  const DeviceFacts& device = *survey.best_device();
  state.properties = verbs_traits(device.limits, 0).properties;
  state.why = "for peers that " + device.name + " (" + device.kind + ", port " +
              std::to_string(survey.best_port()->number) + ", " + survey.first_address() +
              ") reaches";
  if (survey.devices.size() > 1) state.why += ", or another of this machine's RDMA devices";
  return state;
}

std::string trial_address() {
  std::string address = survey_devices().first_address();
  return "rdma://" + (address.find(':') == std::string::npos ? address : "[" + address + "]") +
         ":0";
}

std::unique_ptr<Provider> open(ContextCore& context) {
  return std::make_unique<VerbsProvider>(context);
}
std::unique_ptr<PathChoice> choose(ContextCore& context, Provider& provider) {
  return std::make_unique<Choice>(context, static_cast<VerbsProvider&>(provider));
}

}  // namespace

const PathDescriptor kPath{
    .path = Path::kVerbs,
    .scheme = Scheme::kRdma,
    .name = "rdma",
    .explain = explain,
    .trial_address = trial_address,
    .remedy =
        "`sluice info --explain` lists devices, ports and GIDs; `sluice lab` has an RDMA "
        "device in a guest",
    .needs = "both ends need an RDMA device that reaches the other one: sluice doctor says so",
    .open = open,
    .choose = choose,
};

}  // namespace sluice::verbs
