#include <sluice/l2/carrier/interfaces.h>

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace sluice::l2 {
namespace {

// 1280 less an IPv6 and a UDP header (docs/slp.md, section 2).
constexpr int kLeastMtu = 1232;

std::string obstacle_of(const Interface& found) {
  if (found.mac.empty()) return "no Ethernet: it has no MAC address";
  if (found.mtu < kLeastMtu) {
    return "MTU " + std::to_string(found.mtu) + ", and SLP's frames need " +
           std::to_string(kLeastMtu) +
           "; use tcp:// there, or, if its network carries more: sudo ip link set " + found.name +
           " mtu 1500";
  }
  if (!found.up) return "down; sudo ip link set " + found.name + " up";
  return found.carrier ? "" : "no carrier: nothing at the other end of its cable is up";
}

Interface describe(int socket, const std::string& name) {
  Interface found{.name = name};
  ifreq request = request_for(name);
  if (::ioctl(socket, SIOCGIFHWADDR, &request) == 0) {
    auto kind = request.ifr_hwaddr.sa_family;
    const auto* b = reinterpret_cast<const unsigned char*>(request.ifr_hwaddr.sa_data);
    char text[18];
    std::snprintf(text, sizeof(text), "%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4],
                  b[5]);
    if (kind == ARPHRD_ETHER || kind == ARPHRD_LOOPBACK) found.mac = text;
  }
  request = request_for(name);
  if (::ioctl(socket, SIOCGIFMTU, &request) == 0) found.mtu = request.ifr_mtu;
  request = request_for(name);
  if (::ioctl(socket, SIOCGIFFLAGS, &request) == 0) {
    found.up = (request.ifr_flags & IFF_UP) != 0;
    found.carrier = (request.ifr_flags & IFF_RUNNING) != 0;
    found.loopback = (request.ifr_flags & IFF_LOOPBACK) != 0;
  }
  // What the driver says; the flag follows up to a second later.
  ethtool_value link{.cmd = ETHTOOL_GLINK, .data = 0};
  request = request_for(name);
  request.ifr_data = reinterpret_cast<char*>(&link);
  if (found.up && ::ioctl(socket, SIOCETHTOOL, &request) == 0) found.carrier = link.data != 0;
  found.obstacle = obstacle_of(found);
  return found;
}

}  // namespace

ifreq request_for(const std::string& name) {
  ifreq request{};
  std::memcpy(request.ifr_name, name.data(), std::min(name.size(), sizeof(request.ifr_name) - 1));
  return request;
}

std::vector<Interface> survey_interfaces() {
  std::vector<Interface> all;
  // Only a handle for the questions; nothing is sent.
  int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  struct if_nameindex* list = ::if_nameindex();
  for (auto* entry = list; socket >= 0 && entry != nullptr && entry->if_index != 0; ++entry)
    all.push_back(describe(socket, entry->if_name));
  if (list != nullptr) ::if_freenameindex(list);
  if (socket >= 0) ::close(socket);
  return all;
}

}  // namespace sluice::l2
