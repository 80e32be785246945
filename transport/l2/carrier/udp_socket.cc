#include <sluice/l2/carrier/udp_socket.h>

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/udp_socket";
// What one UDP datagram holds over IPv4 and, without jumbograms, IPv6: 65,535 less the headers.
constexpr int kMostPayload = 65'535 - 48;
constexpr int kIpv4Headers = 20 + 8, kIpv6Headers = 40 + 8;
// IP's ECN field: this transport reacts to marks (RFC 3168).
constexpr int kEct0 = 2;

UdpPlace place_of(const SocketAddress& a) {
  UdpPlace place;
  place.port = a.port();
  if (a.family() == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(a.get());
    place.address = v6->sin6_addr;
    place.scope = v6->sin6_scope_id;
    return place;
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(a.get());
  place.address.s6_addr[10] = place.address.s6_addr[11] = 0xff;
  std::memcpy(place.address.s6_addr + 12, &v4->sin_addr, 4);
  return place;
}

SocketAddress socket_address(const UdpPlace& place) {
  SocketAddress a;
  if (IN6_IS_ADDR_V4MAPPED(&place.address)) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(a.get());
    v4->sin_family = AF_INET;
    v4->sin_port = htons(place.port);
    std::memcpy(&v4->sin_addr, place.address.s6_addr + 12, 4);
    a.length = sizeof(*v4);
    return a;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(a.get());
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(place.port);
  v6->sin6_addr = place.address;
  v6->sin6_scope_id = place.scope;
  a.length = sizeof(*v6);
  return a;
}

Result<std::vector<UdpPlace>> resolve(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  std::vector<UdpPlace> found;
  for (addrinfo* entry = list; error == 0 && entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    SocketAddress a;
    a.length = entry->ai_addrlen;
    std::memcpy(&a.storage, entry->ai_addr, entry->ai_addrlen);
    found.push_back(place_of(a));
    found.back().port = port;
  }
  if (error == 0) ::freeaddrinfo(list);
  if (!found.empty()) return found;
  return Status(Code::kUnreachable, Scope::kOperation, kOrigin,
                "the name '" + host + "' does not resolve (" +
                    (error != 0 ? ::gai_strerror(error) : "it has no address") +
                    "); check its spelling, /etc/hosts and the DNS servers in /etc/resolv.conf");
}

bool set(int fd, int level, int option, int value) {
  return ::setsockopt(fd, level, option, &value, sizeof(value)) == 0;
}

// Datagrams are never cut into fragments: what does not fit is refused here or told by the
// network, and SLP sends smaller frames.
Result<UdpSocket> open(bool ipv6) {
  UdpSocket made{.fd = Descriptor(::socket(ipv6 ? AF_INET6 : AF_INET,
                                           SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
                 .ipv6 = ipv6};
  int fd = made.fd.value();
  if (fd < 0 && errno == EAFNOSUPPORT)
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin, "this kernel has no IPv6", errno);
  if (fd < 0) return no_descriptor(errno);
  bool good = set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO) &&
              set(fd, IPPROTO_IP, IP_TOS, kEct0) && set(fd, IPPROTO_IP, IP_RECVTOS, 1);
  if (ipv6) {
    good = good && set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0) &&
           set(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO) &&
           set(fd, IPPROTO_IPV6, IPV6_TCLASS, kEct0) && set(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
  }
  if (!good)
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  "UDP sockets here cannot set path MTU discovery or ECN", errno);
  // Not in every kernel; without them each frame costs a call.
  made.segments = set(fd, IPPROTO_UDP, UDP_SEGMENT, 0);
  made.joins = set(fd, IPPROTO_UDP, UDP_GRO, 1);
  made.room = enlarge(fd);
  return made;
}

Status learn_own(UdpSocket& socket) {
  SocketAddress own;
  own.length = sizeof(own.storage);
  if (::getsockname(socket.fd.value(), own.get(), &own.length) != 0) {
    return Status(Code::kInternal, Scope::kOperation, kOrigin,
                  "a UDP socket does not know where it is", errno);
  }
  socket.own = place_of(own);
  return Status();
}

Status not_bound(const UdpPlace& place, int error) {
  std::string at = ip_text(place.address, place.scope) + ":" + std::to_string(place.port);
  std::string why = error == EADDRINUSE ? "port " + std::to_string(place.port) +
                                              " is taken; use port 0 for any that is free"
                    : error == EADDRNOTAVAIL ? "this machine has no such address; see: ip address"
                    : error == EACCES ? "ports below 1024 need CAP_NET_BIND_SERVICE; take another"
                                      : "it cannot be bound";
  return Status(error == EACCES ? Code::kAccessDenied : Code::kInvalidArgument, Scope::kOperation,
                kOrigin, "udp " + at + ": " + why, error);
}

Result<UdpSocket> bind_at(const UdpPlace& place) {
  SocketAddress address = socket_address(place);
  SLUICE_TRY(UdpSocket made, open(address.family() == AF_INET6));
  int fd = made.fd.value();
  if (::bind(fd, address.get(), address.length) != 0) return not_bound(place, errno);
  in_addr v4{};
  std::memcpy(&v4, place.address.s6_addr + 12, 4);
  made.everywhere =
      IN6_IS_ADDR_UNSPECIFIED(&place.address) || (!made.ipv6 && v4.s_addr == INADDR_ANY);
  // To answer from the address that was spoken to.
  if (made.everywhere && !(made.ipv6 ? set(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1)
                                     : set(fd, IPPROTO_IP, IP_PKTINFO, 1))) {
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  "UDP sockets here do not tell where a datagram came to; listen at one address",
                  errno);
  }
  SLUICE_RETURN_IF_ERROR(learn_own(made));
  return made;
}

}  // namespace

PeerAddress pack(const UdpPlace& place) {
  PeerAddress out;
  uint8_t* to = out.bytes.data();
  std::memcpy(to, &place.address, 16);
  std::memcpy(to + 16, &place.scope, 4);
  static_assert(kMachineBytes == 20);
  std::memcpy(to + 20, &place.port, 2);
  std::memcpy(to + 22, &place.local, 16);
  out.size = 38;
  return out;
}

UdpPlace unpack(const PeerAddress& address) {
  UdpPlace place;
  const uint8_t* from = address.bytes.data();
  std::memcpy(&place.address, from, 16);
  std::memcpy(&place.scope, from + 16, 4);
  std::memcpy(&place.port, from + 20, 2);
  std::memcpy(&place.local, from + 22, 16);
  return place;
}

std::string ip_text(const in6_addr& address, uint32_t scope) {
  char text[INET6_ADDRSTRLEN] = "";
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    ::inet_ntop(AF_INET, address.s6_addr + 12, text, sizeof(text));
    return text;
  }
  ::inet_ntop(AF_INET6, &address, text, sizeof(text));
  char name[IF_NAMESIZE];
  std::string zone = scope == 0                                 ? ""
                     : ::if_indextoname(scope, name) != nullptr ? "%" + std::string(name)
                                                                : "%" + std::to_string(scope);
  return "[" + std::string(text) + zone + "]";
}

Result<UdpSocket> bind_udp(const std::string& host, uint16_t port) {
  if (host.empty()) {
    auto both = bind_at({.port = port});
    if (both.ok() || both.code() != Code::kUnsupported) return both;
    return bind_udp("0.0.0.0", port);  // no IPv6 here
  }
  SLUICE_TRY(std::vector<UdpPlace> found, resolve(host, port));
  return bind_at(found[0]);
}

Result<UdpSocket> connect_udp(std::span<const SocketAddress> to) {
  Status why;
  for (const SocketAddress& address : to) {
    const UdpPlace place = place_of(address);
    auto made = open(address.family() == AF_INET6);
    if (!made.ok() && made.code() == Code::kNoMemory) return made;
    if (!made.ok()) {
      why = made.status();
      continue;
    }
    if (::connect(made->fd.value(), address.get(), address.length) != 0) {
      why = Status(Code::kUnreachable, Scope::kOperation, kOrigin,
                   "there is no way to " + ip_text(place.address, place.scope) + "; see: ip route",
                   errno);
      continue;
    }
    made->connected = true;
    made->peer = place;
    SLUICE_RETURN_IF_ERROR(learn_own(*made));
    return made;
  }
  return why;
}

uint16_t payload_towards(const UdpPlace& peer) {
  SocketAddress address = socket_address(peer);
  bool ipv6 = address.family() == AF_INET6;
  Descriptor probe(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  int mtu = 0;
  socklen_t length = sizeof(mtu);
  bool known = probe.value() >= 0 && ::connect(probe.value(), address.get(), address.length) == 0 &&
               ::getsockopt(probe.value(), ipv6 ? IPPROTO_IPV6 : IPPROTO_IP,
                            ipv6 ? IPV6_MTU : IP_MTU, &mtu, &length) == 0;
  if (!known) return kLeastFrame;
  return static_cast<uint16_t>(
      std::clamp(mtu - (ipv6 ? kIpv6Headers : kIpv4Headers), 0, kMostPayload));
}

Result<std::string> explain_udp() {
  SLUICE_TRY(UdpSocket socket, open(false));
  std::string how = socket.segments && socket.joins ? "UDP_SEGMENT and UDP_GRO"
                    : socket.segments               ? "UDP_SEGMENT, but no UDP_GRO (Linux 5.0)"
                                      : "one call per frame, for want of UDP_SEGMENT (Linux 4.18)";
  return how + "; " + socket.room.text();
}

}  // namespace sluice::l2
