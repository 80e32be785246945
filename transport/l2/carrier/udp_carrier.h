// Carrier B: each frame is the payload of a UDP datagram, for programs without privileges and
// for routed networks. Many frames of one size go and come in one call: the kernel, or the
// device, cuts and joins them (UDP_SEGMENT, UDP_GRO). Knows no session.
#ifndef SLUICE_L2_CARRIER_UDP_CARRIER_H_
#define SLUICE_L2_CARRIER_UDP_CARRIER_H_

#include <span>
#include <string>

#include <sluice/base/socket_address.h>
#include <sluice/l2/carrier/frames.h>

namespace sluice::l2 {

// To listen; an empty host: at every address of this machine. SLP's port is UDP's. Errors:
// those of bind_udp().
Result<OpenedCarrier> open_udp_carrier(const std::string& host, uint16_t port);

// Towards one peer, whose datagrams alone are taken. Errors: those of connect_udp().
struct UdpMeeting {
  OpenedCarrier opened;
  PeerAddress peer;
};
Result<UdpMeeting> open_udp_towards(std::span<const SocketAddress> to);

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_UDP_CARRIER_H_
