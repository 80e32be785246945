// UDP sockets for SLP's frames: opened, bound or connected, with every option that the
// carrier builds on, and what this kernel gives of them. Knows no frames.
#ifndef SLUICE_L2_CARRIER_UDP_SOCKET_H_
#define SLUICE_L2_CARRIER_UDP_SOCKET_H_

#include <netinet/in.h>

#include <cstdint>
#include <span>
#include <string>

#include <sluice/base/descriptor.h>
#include <sluice/base/result.h>
#include <sluice/base/socket_address.h>
#include <sluice/l2/carrier/frames.h>
#include <sluice/l2/carrier/socket_room.h>

namespace sluice::l2 {

// A PeerAddress of UDP: the peer's IP address (IPv4 as ::ffff:a.b.c.d) and port, and the
// address of ours that it speaks to, where a socket has several (else zeros).
struct UdpPlace {
  in6_addr address{};
  uint32_t scope = 0;  // of a link-local address: the interface
  uint16_t port = 0;
  in6_addr local{};
};
PeerAddress pack(const UdpPlace& place);
UdpPlace unpack(const PeerAddress& address);
// "10.0.0.1", or "[fd00::1]".
std::string ip_text(const in6_addr& address, uint32_t scope);

struct UdpSocket {
  Descriptor fd;
  bool ipv6 = false;        // of family AF_INET6, which speaks IPv4 as well if bound to ::
  bool connected = false;   // the kernel keeps everybody else's datagrams away
  bool everywhere = false;  // bound to no address: which one a datagram came to is told with it
  bool segments = false;    // UDP_SEGMENT: cuts what is sent
  bool joins = false;       // UDP_GRO: joins what is received
  SocketRoom room;
  UdpPlace own, peer;  // peer: if connected
};

// To listen. An empty host: every address of this machine. Port 0: any. Errors:
// kInvalidArgument (not an address of this machine; the port is taken), kUnreachable (the
// name does not resolve), kNoMemory. Blocks: while a name is resolved, not for digits.
Result<UdpSocket> bind_udp(const std::string& host, uint16_t port);
// Towards a peer, at a free port: to the first of its addresses that there is a route to. Requires:
// at least one. Errors: kUnreachable (no route to any), kNoMemory.
Result<UdpSocket> connect_udp(std::span<const SocketAddress> to);

// Bytes of the largest datagram that goes to the peer in one piece, as far as this machine knows.
uint16_t payload_towards(const UdpPlace& peer);

// For `sluice info --explain`: what the sockets of this machine can do, or why there are none.
Result<std::string> explain_udp();

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_UDP_SOCKET_H_
