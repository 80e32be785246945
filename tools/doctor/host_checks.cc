#include "tools/doctor/host_checks.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include <sluice/base/descriptor.h>
#include <sluice/sluice.h>
#include <sluice/verbs/devices.h>

namespace sluice::tools {
namespace {

constexpr auto kPatience = std::chrono::seconds(5);
constexpr int kProbeMs = 3000;

struct Target {
  std::string host;
  std::string port;  // empty: none was given
};

// The part of a whole address, such as "tcp://HOST:PORT", that follows the scheme.
Target split(const std::string& address) {
  const size_t scheme = address.find("://");
  const std::string text = scheme == std::string::npos ? address : address.substr(scheme + 3);
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string::npos) return {text, ""};
    return {text.substr(1, end - 1),
            text.substr(end + 1).starts_with(':') ? text.substr(end + 2) : ""};
  }
  const size_t colon = text.find(':');
  if (colon == std::string::npos || text.find(':', colon + 1) != std::string::npos)
    return {text, ""};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

struct SocketAddress {
  sockaddr_storage address{};
  socklen_t length = 0;
  int family() const { return address.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

std::string text_of(const SocketAddress& endpoint) {
  char text[NI_MAXHOST] = {};
  return ::getnameinfo(endpoint.get(), endpoint.length, text, sizeof(text), nullptr, 0,
                       NI_NUMERICHOST) == 0
             ? text
             : "?";
}

bool is_port(const std::string& text) {
  return text.size() <= 5 && text.find_first_not_of("0123456789") == std::string::npos &&
         std::stoi(text) <= 65535;
}

// All addresses of the host, best first; none: `why` has the resolver's text.
std::vector<SocketAddress> resolve(const Target& target, std::string& why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  // Port 9, discard, where none was asked for: nothing is sent there.
  const int error = ::getaddrinfo(target.host.c_str(),
                                  target.port.empty() ? "9" : target.port.c_str(), &hints, &first);
  if (error != 0) {
    why = ::gai_strerror(error);
    return {};
  }
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(first, ::freeaddrinfo);
  std::vector<SocketAddress> found;
  for (const addrinfo* each = first; each != nullptr; each = each->ai_next) {
    SocketAddress& address = found.emplace_back();
    std::memcpy(&address.address, each->ai_addr, each->ai_addrlen);
    address.length = each->ai_addrlen;
  }
  return found;
}

struct Route {
  int error = 0;  // errno of connect(2)
  std::string source;
  std::string interface;
  int path_mtu = 0, interface_mtu = 0;  // 0: not known
};

std::string interface_of(const std::string& address) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return "";
  std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    SocketAddress here;
    here.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&here.address, each->ifa_addr, here.length);
    if (text_of(here) == address) return each->ifa_name;
  }
  return "";
}

// A UDP socket that is connected sends nothing, and knows its way (ip(7): IP_MTU).
Route route_to_address(const SocketAddress& target) {
  Route route;
  Descriptor socket(::socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (socket.value() < 0 || ::connect(socket.value(), target.get(), target.length) != 0) {
    route.error = errno;
    return route;
  }
  SocketAddress source;
  source.length = sizeof(source.address);
  if (::getsockname(socket.value(), reinterpret_cast<sockaddr*>(&source.address), &source.length) ==
      0)
    route.source = text_of(source);
  route.interface = interface_of(route.source);
  socklen_t size = sizeof(route.path_mtu);
  const bool v4 = target.family() == AF_INET;
  if (::getsockopt(socket.value(), v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_MTU : IPV6_MTU,
                   &route.path_mtu, &size) != 0)
    route.path_mtu = 0;
  ifreq request{};
  route.interface.copy(request.ifr_name, IFNAMSIZ - 1);
  if (!route.interface.empty() && ::ioctl(socket.value(), SIOCGIFMTU, &request) == 0)
    route.interface_mtu = request.ifr_mtu;
  return route;
}

// errno of a TCP connection; 0: it was accepted. It tells a firewall from a port where nobody
// listens.
int probe(const SocketAddress& target) {
  Descriptor socket(::socket(target.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.value() < 0) return errno;
  if (::connect(socket.value(), target.get(), target.length) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd wanted{.fd = socket.value(), .events = POLLOUT, .revents = 0};
  if (::poll(&wanted, 1, kProbeMs) == 0) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof(error);
  (void)::getsockopt(socket.value(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

Finding check_greeting(const std::string& address) {
  ContextOptions usual;
  usual.tuning = Tuning();  // what the environment and the file say is another check's
  auto context = open_context(usual);
  if (!context.ok())
    return problem("connection", context.status().to_string(), "`sluice info` says more");
  ConnectOptions options;
  options.timeout = kPatience;
  auto endpoint = (*context)->connect("sluice://" + address, options);
  const std::string why(endpoint.ok() ? "" : endpoint.status().detail());
  if (why.find("speak versions") != std::string::npos) {
    const auto [cause, remedy] = cause_and_remedy(why, "upgrade the older side");
    return problem("version", fmt::format("{}: {}", address, cause),
                   remedy + " (`sluice --version` here and there)");
  }
  if (!endpoint.ok()) {
    return problem("connection",
                   "something listens at " + address +
                       ", and no connection comes about: " + endpoint.status().to_string(),
                   "see that the program there uses sluice, at the same version, with the same "
                   "secret file, and calls progress()");
  }
  const EndpointInfo info = endpoint->info();
  Finding found = ok("connection",
                     fmt::format("{} by {}: {}", address, to_string(info.path.path), info.reason));
  (void)endpoint->close(after(now(), kPatience));
  return found;
}

// As the library does: the first of the host's addresses that accepts. If none does, the first one
// is the best, and says why: others may be of a family that this machine has not.
Finding check_port(const std::string& address, const std::vector<SocketAddress>& targets) {
  int error = 0;
  for (const SocketAddress& target : targets) {
    const int here = probe(target);
    if (here == 0) return check_greeting(address);
    if (error == 0) error = here;
  }
  if (error == ECONNREFUSED) {
    return problem("port", "nobody listens at " + address,
                   "start the program there first, and let it listen at 0.0.0.0 or at that "
                   "address, not at 127.0.0.1");
  }
  if (error == ETIMEDOUT) {
    return problem("port", fmt::format("no answer from {} within {} s", address, kProbeMs / 1000),
                   "a firewall drops what comes for this port, or the machine is off: `ping` the "
                   "host; on it `sudo nft list ruleset`, and open the port for TCP");
  }
  return problem("port", address + ": " + std::strerror(error),
                 "see `ip route get` and the firewall at both ends");
}

// What sluice:// takes where both ends have what this one has.
std::string usual_path(bool here, bool by_rdma) {
  if (here)
    return "sluice:// takes shm between processes of one user in one network namespace, else tcp";
  if (by_rdma) return "sluice:// takes rdma if the other end has a device that answers, else tcp";
  return "sluice:// takes tcp";
}

Finding check_mtu(const Route& route) {
  if (route.path_mtu == 0 || route.interface_mtu == 0 || route.path_mtu >= route.interface_mtu ||
      route.interface == "lo") {
    return ok("path-mtu",
              route.path_mtu == 0 ? "not known" : fmt::format("{} bytes", route.path_mtu));
  }
  return note("path-mtu",
              fmt::format("packets of up to {} bytes get through, but the interface {} takes {}: a "
                          "tunnel is in between",
                          route.path_mtu, route.interface, route.interface_mtu),
              "nothing: TCP and UDP find it. Where packets vanish all the same, the firewall drops "
              "ICMP 'fragmentation needed'");
}

}  // namespace

Findings check_host(const std::string& text) {
  const Target target = split(text);
  if (!target.port.empty() && !is_port(target.port)) {
    return {problem("name", "'" + target.port + "' is no port",
                    "give a number up to 65535; example: sluice doctor 192.0.2.1:18515")};
  }
  std::string why;
  const std::vector<SocketAddress> addresses = resolve(target, why);
  if (addresses.empty()) {
    return {problem("name", "'" + text + "' has no address: " + why,
                    "see /etc/hosts and /etc/resolv.conf, or give the address; example: sluice "
                    "doctor 192.0.2.1:18515")};
  }
  const std::string address = text_of(addresses.front());
  Findings found = {ok("name", target.host + " is " + address)};
  const Route route = route_to_address(addresses.front());
  if (route.error != 0) {
    found.push_back(problem("route",
                            fmt::format("no way to {}: {}", address, std::strerror(route.error)),
                            "`ip route get " + address + "` shows the kernel's reason"));
    return found;
  }
  const bool here = route.source == address;
  found.push_back(
      ok("route", here ? "this machine: processes of one user use shm"
                       : fmt::format("from {}{}", route.source,
                                     route.interface.empty() ? "" : " by " + route.interface)));
  found.push_back(check_mtu(route));
  const verbs::RouteFacts rdma = verbs::route_to(address);
  found.push_back(
      rdma.found ? ok("rdma-route", fmt::format("by {}/{}: {}", rdma.device, rdma.port, rdma.why))
                 : note("rdma-route", "not by RDMA: " + cause_and_remedy(rdma.why, "").first,
                        "nothing, where tcp is fast enough: sluice:// takes it"));
  found.push_back(ok("path", usual_path(here, rdma.found)));
  if (target.port.empty()) {
    if (!here)
      found.push_back(note("port", "nothing was sent to " + target.host + ", which may be off",
                           "give its port, too, as HOST:PORT, to try it"));
    return found;
  }
  const std::string host =
      target.host.find(':') == std::string::npos ? target.host : "[" + target.host + "]";
  found.push_back(check_port(host + ":" + target.port, addresses));
  return found;
}

}  // namespace sluice::tools
