#include <sluice/l2/carrier/neighbour.h>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include <sluice/base/descriptor.h>
#include <sluice/l2/carrier/frames.h>

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/neighbour";

Status none(std::string why, int error = 0) {
  return Status(Code::kUnsupported, Scope::kOperation, kOrigin, std::move(why), error);
}

// An IPv4 address, also if it is written as one of IPv6.
std::optional<in_addr> ipv4_in(const sockaddr* address) {
  if (address == nullptr) return std::nullopt;
  in_addr out;
  if (address->sa_family == AF_INET) {
    std::memcpy(&out, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, sizeof(out));
    return out;
  }
  if (address->sa_family != AF_INET6) return std::nullopt;
  const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  if (!IN6_IS_ADDR_V4MAPPED(&six)) return std::nullopt;
  std::memcpy(&out, six.s6_addr + 12, sizeof(out));
  return out;
}

std::optional<in_addr> end_of(int fd, int (*ask)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (ask(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return std::nullopt;
  return ipv4_in(reinterpret_cast<const sockaddr*>(&address));
}

std::string text_of(in_addr address) {
  char text[INET_ADDRSTRLEN];
  return ::inet_ntop(AF_INET, &address, text, sizeof(text));
}

}  // namespace

Result<std::string> interface_of_connection(int fd) {
  std::optional<in_addr> local = end_of(fd, ::getsockname);
  if (!local) return none("the connection is by IPv6; name the listener by its IPv4 address");
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return none("this machine's addresses could not be read", errno);
  std::string name;
  bool loopback = false;
  for (const ifaddrs* each = all; each != nullptr && name.empty(); each = each->ifa_next) {
    std::optional<in_addr> address = ipv4_in(each->ifa_addr);
    if (!address || address->s_addr != local->s_addr) continue;
    name = each->ifa_name;
    loopback = (each->ifa_flags & IFF_LOOPBACK) != 0;
  }
  ::freeifaddrs(all);
  if (name.empty()) return none("no interface has the address " + text_of(*local));
  if (loopback) return none(name + " reaches this machine only");
  return name.substr(0, name.find(':'));  // eth0:1 is another address of eth0
}

Result<Neighbour> neighbour_of_connection(int fd) {
  SLUICE_TRY(std::string interface, interface_of_connection(fd));
  std::optional<in_addr> peer = end_of(fd, ::getpeername);
  if (!peer) return none("the connection has ended");
  arpreq request{};
  sockaddr_in wanted{.sin_family = AF_INET, .sin_port = 0, .sin_addr = *peer, .sin_zero = {}};
  std::memcpy(&request.arp_pa, &wanted, sizeof(wanted));
  interface.copy(request.arp_dev, sizeof(request.arp_dev) - 1);
  std::string whom = text_of(*peer) + " is no neighbour on " + interface;
  Descriptor asking(
      ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));  // sockets of IPv6 do not answer this
  if (::ioctl(asking.value(), SIOCGARP, &request) != 0) {
    return none(whom + (errno == ENXIO ? ": it is reached by a router, or is this machine"
                                       : ": the kernel does not say"),
                errno);
  }
  if ((request.arp_flags & ATF_COM) == 0 || request.arp_ha.sa_family != ARPHRD_ETHER)
    return none(whom + ": its MAC address is not known");
  PeerAddress mac{.bytes = {}, .size = 6};
  std::copy_n(reinterpret_cast<const uint8_t*>(request.arp_ha.sa_data), mac.size,
              mac.bytes.begin());
  return Neighbour{interface, mac_text(mac)};
}

}  // namespace sluice::l2
