#include "tools/dump/packet.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdio>

namespace sluice::tools::dump {
namespace {

constexpr uint16_t kIp = 0x0800, kIp6 = 0x86dd;
constexpr uint8_t kUdp = 17;
// Tags on top of each other, and IPv6 headers before UDP: more is nobody's network.
constexpr int kMostTags = 4, kMostExtensions = 8;

bool is_tag(uint16_t type) { return type == 0x8100 || type == 0x88a8 || type == 0x9100; }

// What is left of a packet: what was kept, and how long it was.
struct Rest {
  std::span<const uint8_t> bytes;
  uint64_t length = 0;

  bool has(size_t n) const { return bytes.size() >= n; }
  uint16_t word(size_t at) const { return static_cast<uint16_t>(bytes[at] << 8 | bytes[at + 1]); }
  // Requires: has(n).
  void drop(size_t n) {
    bytes = bytes.subspan(n);
    length -= std::min<uint64_t>(length, n);
  }
  void limit(uint64_t n) {
    length = std::min(length, n);
    bytes = bytes.first(std::min<uint64_t>(bytes.size(), length));
  }
};

Found too_short(const Rest& rest) {
  return rest.length > rest.bytes.size() ? Found::kCut : Found::kOther;
}

std::string ip_text(const uint8_t* address, bool six) {
  char text[INET6_ADDRSTRLEN] = "?";
  ::inet_ntop(six ? AF_INET6 : AF_INET, address, text, sizeof(text));
  return six ? "[" + std::string(text) + "]" : text;
}

Found in_udp(Rest rest, const Carriers& carriers, Envelope& out) {
  if (!rest.has(8)) return too_short(rest);
  uint16_t source = rest.word(0), destination = rest.word(2), length = rest.word(4);
  if (carriers.udp_port != 0 && source != carriers.udp_port && destination != carriers.udp_port)
    return Found::kOther;
  rest.drop(8);
  if (length >= 8) rest.limit(length - 8u);  // 0: longer than can be said (a segment before GSO)
  out.udp = true;
  out.from += ":" + std::to_string(source);
  out.to += ":" + std::to_string(destination);
  out.bytes = rest.bytes;
  out.length = rest.length;
  return Found::kFrame;
}

Found in_ipv4(Rest rest, const Carriers& carriers, Envelope& out) {
  if (!rest.has(20)) return too_short(rest);
  size_t header = (rest.bytes[0] & 15u) * 4u;
  if (rest.bytes[0] >> 4 != 4 || header < 20 || rest.bytes[9] != kUdp) return Found::kOther;
  uint16_t total = rest.word(2), fragment = rest.word(6);
  if (total >= header) rest.limit(total);
  if (!rest.has(header)) return too_short(rest);
  out.congested = (rest.bytes[1] & 3) == 3;
  out.from = ip_text(rest.bytes.data() + 12, false);
  out.to = ip_text(rest.bytes.data() + 16, false);
  rest.drop(header);
  if ((fragment & 0x3fff) == 0) return in_udp(rest, carriers, out);
  if ((fragment & 0x1fff) != 0) return Found::kOther;  // the rest of what nobody knows
  return in_udp(rest, carriers, out) == Found::kFrame ? Found::kFragment : Found::kOther;
}

Found in_ipv6(Rest rest, const Carriers& carriers, Envelope& out) {
  if (!rest.has(40)) return too_short(rest);
  if (rest.bytes[0] >> 4 != 6) return Found::kOther;
  uint16_t payload = rest.word(4);
  uint8_t next = rest.bytes[6];
  if (payload > 0) rest.limit(40u + payload);
  out.congested = (rest.bytes[1] >> 4 & 3) == 3;
  out.from = ip_text(rest.bytes.data() + 8, true);
  out.to = ip_text(rest.bytes.data() + 24, true);
  rest.drop(40);
  // Hop-by-hop, routing and destination options go before it (RFC 8200, section 4.1).
  for (int i = 0; i < kMostExtensions && (next == 0 || next == 43 || next == 60); ++i) {
    if (!rest.has(8)) return too_short(rest);
    size_t length = 8u + rest.bytes[1] * 8u;
    next = rest.bytes[0];
    if (!rest.has(length)) return too_short(rest);
    rest.drop(length);
  }
  return next == kUdp ? in_udp(rest, carriers, out) : Found::kOther;
}

Found by_type(uint16_t type, Rest rest, const Carriers& carriers, Envelope& out) {
  for (int i = 0; i < kMostTags && is_tag(type); ++i) {
    if (!rest.has(4)) return too_short(rest);
    out.vlans.push_back(rest.word(0) & 0xfff);
    type = rest.word(2);
    rest.drop(4);
  }
  if (type == carriers.ethertype) {
    out.bytes = rest.bytes;
    out.length = rest.length;
    return Found::kFrame;
  }
  if (!carriers.udp) return Found::kOther;
  return type == kIp    ? in_ipv4(rest, carriers, out)
         : type == kIp6 ? in_ipv6(rest, carriers, out)
                        : Found::kOther;
}

Found in_raw_ip(Rest rest, const Carriers& carriers, Envelope& out) {
  if (!rest.has(1)) return too_short(rest);
  if (!carriers.udp) return Found::kOther;
  return rest.bytes[0] >> 4 == 6 ? in_ipv6(rest, carriers, out) : in_ipv4(rest, carriers, out);
}

// tcpdump -i any: the sender's address without the receiver's.
Found in_cooked(Rest rest, bool second, const Carriers& carriers, Envelope& out) {
  size_t header = second ? 20 : 16, address = second ? 12 : 6;
  if (!rest.has(header)) return too_short(rest);
  out.from = mac_text(rest.bytes.data() + address);
  uint16_t type = rest.word(second ? 0 : 14);
  rest.drop(header);
  return by_type(type, rest, carriers, out);
}

}  // namespace

bool is_known_link(uint16_t type) {
  return type == kEthernet || type == kRawIp || type == kLinuxCooked || type == kIpv4 ||
         type == kIpv6 || type == kLinuxCooked2;
}

std::string mac_text(const uint8_t* b) {
  char text[18];
  std::snprintf(text, sizeof(text), "%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4],
                b[5]);
  return text;
}

Found find_frame(const Captured& packet, const Carriers& carriers, Envelope& out) {
  out = Envelope();
  Rest rest{packet.bytes, packet.original_bytes};
  switch (packet.link_type) {
    case kRawIp:
    case kIpv4:
    case kIpv6: return in_raw_ip(rest, carriers, out);
    case kLinuxCooked: return in_cooked(rest, false, carriers, out);
    case kLinuxCooked2: return in_cooked(rest, true, carriers, out);
    case kEthernet: break;
    default: return Found::kOther;
  }
  if (!rest.has(14)) return too_short(rest);
  out.to = mac_text(rest.bytes.data());
  out.from = mac_text(rest.bytes.data() + 6);
  uint16_t type = rest.word(12);
  rest.drop(14);
  return by_type(type, rest, carriers, out);
}

}  // namespace sluice::tools::dump
