#include <sluice/base/socket_address.h>

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

namespace sluice {

uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  if (family() == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return 0;
}

std::string SocketAddress::host() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (family() == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr, text,
                sizeof(text));
    return text;
  }
  if (family() != AF_INET6) return "unknown";
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage);
  ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  std::string host = text;
  char device[IF_NAMESIZE];
  if (v6->sin6_scope_id != 0 && ::if_indextoname(v6->sin6_scope_id, device) != nullptr)
    host += std::string("%") + device;
  return host;
}

std::string SocketAddress::to_string() const {
  std::string name = family() == AF_INET6 ? "[" + host() + "]" : host();
  return name + ":" + std::to_string(port());
}

bool is_its_own_peer(int fd) {
  SocketAddress ours, theirs;
  ours.length = theirs.length = sizeof(ours.storage);
  return ::getsockname(fd, ours.get(), &ours.length) == 0 &&
         ::getpeername(fd, theirs.get(), &theirs.length) == 0 && ours.port() != 0 &&
         ours.to_string() == theirs.to_string();
}

}  // namespace sluice
