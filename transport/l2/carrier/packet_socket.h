// A packet socket towards one port of one interface: the part that takes a privilege. Opened
// here only; the filter lets nothing else through, and on request nobody can change it.
#ifndef SLUICE_L2_CARRIER_PACKET_SOCKET_H_
#define SLUICE_L2_CARRIER_PACKET_SOCKET_H_

#include <cstdint>
#include <span>
#include <string>

#include <sluice/base/descriptor.h>
#include <sluice/base/result.h>

namespace sluice::l2 {

struct PacketSocket {
  Descriptor fd;
  // Stands for the port, which is taken until this is closed: packet sockets share.
  Descriptor claim;
  uint16_t port = 0;
};

// A port of one interface that no other carrier of this network has: of packet sockets and of
// AF_XDP alike. Port 0: any that is free above 32767. Errors: kInvalidArgument (it is taken).
struct PortClaim {
  Descriptor claim;
  uint16_t port = 0;
};
Result<PortClaim> claim_any_port(const std::string& interface, int index, uint16_t port);

// Port 0: any that is free above 32767. Locked: for a user who may not sniff. The filter then also
// checks SLP's EtherType and the interface, since the holder of the socket may bind it anew.
// Errors: kAccessDenied (CAP_NET_RAW), kInvalidArgument (no such interface: the detail names those
// there are; the port is taken), kNoMemory.
Result<PacketSocket> open_packet_socket(const std::string& interface, uint16_t port,
                                        bool locked = false);

// Changes what an unlocked socket of that port takes (guard_filter.h). Return errno, or 0.
int guard_packet_socket(int fd, uint16_t port, std::span<const uint32_t> connections,
                        uint32_t one_of);
int unguard_packet_socket(int fd, uint16_t port);

// A socket for questions by name (docs/slp.md, section 15): what others ask everybody, or this
// interface, towards `port` or any. Shares them with every such socket. Errors: as above.
Result<Descriptor> open_find_socket(const std::string& interface, uint16_t port);

// Whether this process may open packet sockets: ok, or what to do about it.
Status packet_sockets_allowed();

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_PACKET_SOCKET_H_
