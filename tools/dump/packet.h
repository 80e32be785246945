// From a captured packet to the SLP frames within: Ethernet with our EtherType, VLAN tags
// or none, and UDP over IPv4 and IPv6. Knows nothing of what is in a frame.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/dump/capture.h"

namespace sluice::tools::dump {

// Link types of captures (tcpdump.org/linktypes.html) that are understood.
inline constexpr uint16_t kEthernet = 1, kRawIp = 101, kLinuxCooked = 113, kIpv4 = 228, kIpv6 = 229,
                          kLinuxCooked2 = 276;
bool is_known_link(uint16_t link_type);

// Which packets carry SLP.
struct Carriers {
  uint16_t ethertype = 0;
  bool udp = true;
  uint16_t udp_port =
      0;  // at either end; 0: any, and what a datagram has must prove that it is a frame
};

// What surrounds a frame.
struct Envelope {
  bool udp = false;
  bool congested = false;  // by the IP header (RFC 3168)
  std::string from,
      to;  // MAC addresses, or IP addresses and UDP ports; a cooked capture has no `to`
  std::vector<uint16_t> vlans;     // outermost first: 12 bits each
  std::span<const uint8_t> bytes;  // kept by the capture, from the frame's base on
  uint64_t length = 0;             // on the wire, padding included
};

enum class Found : uint8_t {
  kFrame,
  kOther,     // not ours
  kFragment,  // of a UDP datagram to our port, or its rest: not put together again
  kCut,       // ends before it can be told
};
Found find_frame(const Captured& packet, const Carriers& carriers, Envelope& out);

std::string mac_text(const uint8_t* mac);

}  // namespace sluice::tools::dump
