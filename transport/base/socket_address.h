// An IP address with a port, as the kernel's calls take it. Resolves no name.
#ifndef SLUICE_BASE_SOCKET_ADDRESS_H_
#define SLUICE_BASE_SOCKET_ADDRESS_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace sluice {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  uint16_t port() const;
  std::string host() const;
  // "10.0.0.1:7000", "[::1]:7000"
  std::string to_string() const;
};

// Whether a connection has one end only. The kernel may give a caller the very port that it calls,
// if nobody listens there, and TCP then connects the socket to itself (RFC 9293, simultaneous
// open).
bool is_its_own_peer(int fd);

}  // namespace sluice

#endif  // SLUICE_BASE_SOCKET_ADDRESS_H_
