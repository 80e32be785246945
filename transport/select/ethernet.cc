#include <sluice/select/ethernet.h>

#include <net/if.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string_view>
#include <string>
#include <utility>
#include <vector>

#include <sluice/base/counters.h>
#include <sluice/base/log.h>
#include <sluice/base/settings.h>
#include <sluice/kmod/provider.h>
#include <sluice/kmod/traits.h>
#include <sluice/l2/carrier/neighbour.h>
#include <sluice/l2/provider.h>
#include <sluice/l2/traits.h>
#include <sluice/proto/session.h>
#include <sluice/runtime/awaits.h>
#include <sluice/runtime/secret.h>
#include <sluice/select/silences.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::select {
namespace {

constexpr const char* kOrigin = "select/ethernet";
// Who answered over TCP just now answers a neighbour's frame in less, or frames do not reach it.
constexpr Duration kAnswerLimit = std::chrono::seconds(1);
// Less is no sign of silence, and no loss when it is waited for again: a caller's own time may be
// as short.
constexpr Duration kSilence = std::chrono::milliseconds(250);

Counter not_asked("select.ethernet_not_asked");
Counter chose_module("select.chose_module");
Counter chose_packet("select.chose_packet");

// An interface that could not be opened is tried again, but not for each caller.
constexpr Duration kOpenInterval = std::chrono::seconds(1);

Status unusable(std::string why) {
  return Status(Code::kUnsupported, Scope::kOperation, kOrigin, std::move(why));
}

// 0: it does not listen there.
uint16_t port_of(const ListenerCore* listener) {
  if (listener == nullptr) return 0;
  Result<Address> address = Address::parse(listener->address());
  return address.ok() ? address->port : 0;
}

}  // namespace

bool ethernet_wanted(bool option, const Requirements& require) {
  return option || require.path == Path::kModule || require.path == Path::kPacket ||
         setting_is("SLUICE_ETHERNET", "1");
}

PathProperties ethernet_properties(Path path, bool sealed) {
  PathProperties properties =
      path == Path::kModule ? kmod::kmod_traits().properties : l2::l2_traits(path).properties;
  if (path == Path::kPacket && sealed)
    properties.capabilities = properties.capabilities.with(Capability::kSealed);
  return properties;
}

namespace {

// One of the two carriers.
struct Carrier {
  Path path;
  std::string scheme;  // "kmod://"
  std::function<Task<Result<std::shared_ptr<EndpointCore>>>(const Address&, const ConnectOptions&,
                                                            const proto::SessionOptions&)>
      start_connect;
  std::function<Result<std::unique_ptr<ListenerCore>>(const Address&, const ListenOptions&,
                                                      const proto::SessionOptions&)>
      listen;
  bool is_module() const { return path == Path::kModule; }
};

// It is an endpoint already, and the peer accepts it by itself.
class Neighbour final : public MetPeer {
 public:
  explicit Neighbour(std::shared_ptr<EndpointCore> endpoint) : endpoint_(std::move(endpoint)) {}
  bool is_settled() const override { return true; }
  Result<std::shared_ptr<EndpointCore>> make_endpoint(const Requirements&,
                                                      const proto::SessionOptions&,
                                                      std::string) override {
    return std::move(endpoint_);
  }

 private:
  std::shared_ptr<EndpointCore> endpoint_;
};

// Listens on each interface by which somebody comes, from his greeting on until close.
class OnInterfaces final : public PathListener {
 public:
  // The caller that asks it for endpoints counts them, and asks ListenOptions::accept.
  OnInterfaces(const Carrier& carrier, const ListenOptions& options)
      : carrier_(carrier), options_(options) {
    options_.max_connections = options_.max_connections_by_address = 0;
    options_.accept = nullptr;
  }
  // Nothing where it cannot, with a line in the log.
  void announce(int fd, wire::Hello& ours) override {
    Result<std::string> interface = l2::interface_of_connection(fd);
    if (!interface.ok()) return;
    const uint16_t port = port_of(on(*interface).listener.get());
    (carrier_.is_module() ? ours.module_port : ours.packet_port) = port;
  }
  std::shared_ptr<EndpointCore> accept() override {
    for (OnInterface& there : interfaces_) {
      if (there.listener == nullptr) continue;
      if (auto endpoint = there.listener->accept()) return endpoint;
    }
    return nullptr;
  }
  bool pairs() const override { return false; }

 private:
  struct OnInterface {
    std::string name;
    unsigned index;  // another one: it was made anew, and nobody comes by the old one
    Instant opened;
    std::unique_ptr<ListenerCore> listener;  // null: could not be, then
  };
  OnInterface& on(const std::string& interface);

  const Carrier& carrier_;
  ListenOptions options_;
  std::vector<OnInterface> interfaces_;
};

OnInterfaces::OnInterface& OnInterfaces::on(const std::string& interface) {
  unsigned index = ::if_nametoindex(interface.c_str());
  auto known = std::find_if(interfaces_.begin(), interfaces_.end(),
                            [&](const OnInterface& o) { return o.name == interface; });
  if (known != interfaces_.end() && known->index != index) {
    interfaces_.erase(known);
    known = interfaces_.end();
  }
  if (known == interfaces_.end())
    known = interfaces_.insert(
        known, {.name = interface, .index = index, .opened = {}, .listener = nullptr});
  if (known->listener != nullptr || now() < after(known->opened, kOpenInterval)) return *known;
  known->opened = now();
  const bool secret = secret_is_set(options_.secret_file);
  if ((carrier_.is_module() && secret) ||
      !unmet(options_.require, ethernet_properties(carrier_.path, secret)).empty())
    return *known;
  proto::SessionOptions session = proto::session_options(options_);
  session.why = "a neighbour, which chose it";
  const std::string where = carrier_.scheme + interface;
  Result<Address> address = Address::parse(where + ":0");
  auto listener = address.ok() ? carrier_.listen(*address, options_, session)
                               : Result<std::unique_ptr<ListenerCore>>(address.status());
  if (listener.ok())
    known->listener = std::move(listener).value();
  else
    log(LogLevel::kInfo, "not listening at " + where + ": " + listener.status().to_string());
  return *known;
}

// Of a path that nobody asked for: empty, unless it may be the one that a program with a secret
// needs.
std::string why_off(const Carrier& carrier, const Requirements& require) {
  if (carrier.is_module() || !require.sealed) return "";
  return "plain Ethernet is off; set SLUICE_ETHERNET=1 on both sides, or use l2://udp/HOST:PORT, "
         "which needs no privilege";
}

class Choice final : public PathChoice {
 public:
  explicit Choice(Carrier carrier) : carrier_(std::move(carrier)) {}
  // For a second at most, and not at all where that neighbour did not answer in the minute before.
  Task<Result<std::unique_ptr<MetPeer>>> meet(const PathAttempt& attempt) override;
  std::string_view why_met() const override { return ""; }  // its session says so
  std::string_view why_paired() const override { return "the peer chose it"; }
  bool serves(const ListenOptions& options, std::string& why_not) const override {
    if (!ethernet_wanted(options.ethernet, options.require)) {
      why_not = why_off(carrier_, options.require);
      return false;
    }
    why_not = unmet(options.require,
                    ethernet_properties(carrier_.path, secret_is_set(options.secret_file)));
    return why_not.empty();
  }
  Result<std::unique_ptr<PathListener>> listen(const Address&,
                                               const ListenOptions& options) override {
    return std::unique_ptr<PathListener>(std::make_unique<OnInterfaces>(carrier_, options));
  }
  Counter& chosen() override { return carrier_.is_module() ? chose_module : chose_packet; }

 private:
  Result<Address> place_of(const PathAttempt& attempt) const;

  Carrier carrier_;
  Silences silences_;
};

// Where the peer listens, if this path can be.
Result<Address> Choice::place_of(const PathAttempt& attempt) const {
  const bool by_module = carrier_.is_module();
  const uint16_t port = by_module ? attempt.peer.module_port : attempt.peer.packet_port;
  if (port == 0)
    return unusable(by_module ? "the peer has no kernel module there"
                              : "the peer listens for no frames there");
  // Checked before the call: a called peer accepts.
  const bool secret = secret_is_set(attempt.options.secret_file);
  if (by_module && secret)
    return unusable("the kernel module cannot encrypt, and there is a secret");
  if (std::string lacking =
          unmet(attempt.options.require, ethernet_properties(carrier_.path, secret));
      !lacking.empty())
    return unusable(lacking);
  SLUICE_TRY(l2::Neighbour neighbour, l2::neighbour_of_connection(attempt.fd));
  Result<Address> address = Address::parse(carrier_.scheme + neighbour.interface + "/" +
                                           neighbour.mac + ":" + std::to_string(port));
  if (!address.ok()) return unusable(address.status().to_string());
  return address;
}

Task<Result<std::unique_ptr<MetPeer>>> Choice::meet(const PathAttempt& attempt) {
  if (!ethernet_wanted(attempt.options.ethernet, attempt.options.require))
    co_return unusable(why_off(carrier_, attempt.options.require));
  const Duration patience = (attempt.deadline - now()) / 2;  // the other half is for the next path
  SLUICE_CO_TRY(Address address, place_of(attempt));
  const std::string whom = carrier_.scheme + address.host + "/" + address.name;
  // An interface that was made anew may be on another network.
  std::string asked = std::to_string(::if_nametoindex(address.host.c_str())) + " " + whom;
  Instant begun = now();
  if (std::optional<Instant> silent = silences_.last(asked, begun)) {
    not_asked.add();
    auto seconds = [](Duration d) {
      return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(d).count()) + " s";
    };
    co_return unusable(whom + " did not answer " + seconds(begun - *silent) +
                       " ago; it is asked again " + seconds(Silences::kRemembered) + " after that");
  }
  ConnectOptions soon = attempt.options;
  soon.timeout = std::clamp<Duration>(patience, std::chrono::milliseconds(1), kAnswerLimit);
  soon.discover = false;
  proto::SessionOptions session = attempt.session;
  session.why = "the peer is a neighbour, and the probe both ways worked; " + attempt.why_not;
  auto endpoint = co_await carrier_.start_connect(address, soon, session);
  if (!endpoint.ok()) {
    bool silence = endpoint.code() == Code::kTimedOut || endpoint.code() == Code::kUnreachable;
    if (Instant ended = now(); silence && ended - begun >= kSilence)
      silences_.add(std::move(asked), ended);
    co_return unusable(endpoint.status().to_string());
  }
  if ((*endpoint)->info().peer_incarnation != attempt.peer.incarnation) {
    Status why = unusable("another process answers at " + address.to_string() +
                          " than the one that TCP reaches");
    (*endpoint)->abort(why);
    (*endpoint)->drop_unexpected();
    co_return why;
  }
  co_return std::unique_ptr<MetPeer>(std::make_unique<Neighbour>(std::move(endpoint).value()));
}

template <typename Backend>
std::unique_ptr<PathChoice> choice_of(Path path, std::string scheme, Provider& provider) {
  auto& backend = static_cast<Backend&>(provider);
  return std::make_unique<Choice>(Carrier{
      .path = path,
      .scheme = std::move(scheme),
      .start_connect =
          [&backend](const Address& address, const ConnectOptions& options,
                     const proto::SessionOptions& session) {
            return backend.start_connect(address, options, session);
          },
      .listen =
          [&backend](const Address& address, const ListenOptions& options,
                     const proto::SessionOptions& session) {
            return backend.listen(address, options, session);
          },
  });
}

}  // namespace

std::unique_ptr<PathChoice> open_ethernet_choice(const PathDescriptor& path, Provider& provider) {
  if (path.path == Path::kModule)
    return choice_of<kmod::KmodProvider>(path.path, "kmod://", provider);
  if (path.path == Path::kPacket) return choice_of<l2::L2Provider>(path.path, "l2://", provider);
  return nullptr;
}

}  // namespace sluice::select
