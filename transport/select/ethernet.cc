#include <sluice/select/ethernet.h>

#include <net/if.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include <sluice/api/sealing.h>
#include <sluice/base/counters.h>
#include <sluice/base/log.h>
#include <sluice/kmod/traits.h>
#include <sluice/l2/carrier/neighbour.h>
#include <sluice/l2/traits.h>

namespace sluice::select {
namespace {

constexpr const char* kOrigin = "select/ethernet";
// Who answered over TCP just now answers a neighbour's frame in less, or frames do not reach it.
constexpr Duration kAnswerLimit = std::chrono::seconds(1);
// Less is no sign of silence, and no loss when it is waited for again: a caller's own time may be
// as short.
constexpr Duration kSilence = std::chrono::milliseconds(250);

Counter not_asked("select.ethernet_not_asked");

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

bool ethernet_wanted(bool option) {
  const char* variable = std::getenv("SLUICE_ETHERNET");
  return option || (variable != nullptr && std::string_view(variable) == "1");
}

PathProperties ethernet_properties(Path path, bool sealed) {
  PathProperties properties =
      path == Path::kModule ? kmod::kmod_traits().properties : l2::l2_traits(path).properties;
  if (path == Path::kPacket && sealed)
    properties.capabilities = properties.capabilities.with(Capability::kSealed);
  return properties;
}

Result<std::shared_ptr<EndpointCore>> EthernetCaller::connect(
    Path path, int fd, const wire::Hello& peer, Duration patience, const ConnectOptions& options,
    const proto::SessionOptions& session) {
  bool by_module = path == Path::kModule;
  uint16_t port = by_module ? peer.module_port : peer.packet_port;
  if (port == 0)
    return unusable(by_module ? "the peer has no kernel module there"
                              : "the peer listens for no frames there");
  // Checked before the call: a called peer accepts.
  const bool secret = secret_is_set(options.secret_file);
  if (by_module && secret)
    return unusable("the kernel module cannot encrypt, and there is a secret");
  if (std::string lacking = unmet(options.require, ethernet_properties(path, secret));
      !lacking.empty())
    return unusable(lacking);
  SLUICE_TRY(l2::Neighbour neighbour, l2::neighbour_of_connection(fd));
  std::string whom = (by_module ? "kmod://" : "l2://") + neighbour.interface + "/" + neighbour.mac;
  Result<Address> address = Address::parse(whom + ":" + std::to_string(port));
  if (!address.ok()) return unusable(address.status().to_string());
  // An interface that was made anew may be on another network.
  std::string asked = std::to_string(::if_nametoindex(neighbour.interface.c_str())) + " " + whom;
  Instant begun = now();
  if (std::optional<Instant> silent = silences_.last(asked, begun)) {
    not_asked.add();
    auto seconds = [](Duration d) {
      return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(d).count()) + " s";
    };
    return unusable(whom + " did not answer " + seconds(begun - *silent) +
                    " ago; it is asked again " + seconds(Silences::kRemembered) + " after that");
  }
  ConnectOptions soon = options;
  soon.timeout = std::clamp<Duration>(patience, std::chrono::milliseconds(1), kAnswerLimit);
  soon.discover = false;
  auto endpoint = by_module ? carriers_.module.connect(*address, soon, session)
                            : carriers_.packet.connect(*address, soon, session);
  if (!endpoint.ok()) {
    bool silence = endpoint.code() == Code::kTimedOut || endpoint.code() == Code::kUnreachable;
    if (Instant ended = now(); silence && ended - begun >= kSilence)
      silences_.add(std::move(asked), ended);
    return unusable(endpoint.status().to_string());
  }
  if ((*endpoint)->info().peer_incarnation != peer.incarnation) {
    Status why = unusable("another process answers at " + address->to_string() +
                          " than the one that TCP reaches");
    (*endpoint)->abort(why);
    return why;
  }
  return endpoint;
}

EthernetListeners::OnInterface& EthernetListeners::on(const std::string& interface) {
  unsigned index = ::if_nametoindex(interface.c_str());
  auto known = std::find_if(interfaces_.begin(), interfaces_.end(),
                            [&](const OnInterface& o) { return o.name == interface; });
  if (known != interfaces_.end() && known->index != index) {
    interfaces_.erase(known);
    known = interfaces_.end();
  }
  if (known == interfaces_.end())
    known = interfaces_.insert(
        known,
        {.name = interface, .index = index, .opened = {}, .module = nullptr, .packet = nullptr});
  if ((known->module != nullptr && known->packet != nullptr) ||
      now() < after(known->opened, kOpenInterval))
    return *known;
  known->opened = now();
  proto::SessionOptions session = proto::session_options(options_);
  session.why = "a neighbour, which chose it";
  auto open = [&](Path path, const char* scheme, auto& provider,
                  std::unique_ptr<ListenerCore>& out) {
    const bool secret = secret_is_set(options_.secret_file);
    if (out != nullptr || (path == Path::kModule && secret) ||
        !unmet(options_.require, ethernet_properties(path, secret)).empty())
      return;
    Result<Address> address = Address::parse(scheme + interface + ":0");
    auto listener = address.ok() ? provider.listen(*address, options_, session)
                                 : Result<std::unique_ptr<ListenerCore>>(address.status());
    if (listener.ok())
      out = std::move(listener).value();
    else
      log(LogLevel::kInfo,
          "not listening at " + (scheme + interface) + ": " + listener.status().to_string());
  };
  open(Path::kModule, "kmod://", carriers_.module, known->module);
  open(Path::kPacket, "l2://", carriers_.packet, known->packet);
  return *known;
}

void EthernetListeners::announce(int fd, wire::Hello& ours) {
  Result<std::string> interface = l2::interface_of_connection(fd);
  if (!interface.ok()) return;
  OnInterface& there = on(*interface);
  ours.module_port = port_of(there.module.get());
  ours.packet_port = port_of(there.packet.get());
}

std::shared_ptr<EndpointCore> EthernetListeners::accept() {
  for (OnInterface& there : interfaces_) {
    for (ListenerCore* listener : {there.module.get(), there.packet.get()}) {
      if (listener == nullptr) continue;
      if (auto endpoint = listener->accept()) return endpoint;
    }
  }
  return nullptr;
}

}  // namespace sluice::select
