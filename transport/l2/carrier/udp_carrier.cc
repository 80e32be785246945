#include <sluice/l2/carrier/udp_carrier.h>

#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <sluice/l2/carrier/guard_filter.h>
#include <sluice/l2/carrier/udp_socket.h>

namespace sluice::l2 {
namespace {

// What one call may hand to the kernel to be cut: one IP packet's worth, and as many pieces as
// every kernel takes (UDP_MAX_SEGMENTS was 64 before Linux 6.9).
constexpr size_t kMostTogether = 65'535 - 48;
constexpr size_t kMostSegments = 64;
// Datagrams joined by the kernel into one slot: 64, or 128 where the sender's kernel has not
// cut them either.
constexpr size_t kMostJoined = 128;
constexpr size_t kSlotBytes = 65'536;
// Datagrams of one slot that are received in place: as many as one call of the sender's.
constexpr size_t kMostScattered = 64;
// Taken at once: a third of what SLP lets one transfer have under way, so that acknowledgements
// leave while more comes; and little enough to be copied on from the cache.
constexpr size_t kMostAsked = 4;
// An IP address to send from, or that it came to; the size of segments; ECN.
constexpr size_t kControlBytes = CMSG_SPACE(sizeof(in6_pktinfo)) + 3 * CMSG_SPACE(sizeof(int));
constexpr uint8_t kEcnBits = 3, kCongestionExperienced = 3;

Counter segments_refused("l2.udp_segments_refused");
Counter datagrams_joined("l2.udp_datagrams_joined");

// Frames that leave in one call: of one size, but for the last, which may be smaller.
struct Together {
  size_t first, count, bytes;
};

struct Call {
  sockaddr_in6 to;
  sockaddr_in to_v4;
  alignas(cmsghdr) char control[kControlBytes];
};

size_t size_of(const FrameOut& frame) {
  size_t bytes = 0;
  for (size_t i = 0; i < frame.count; ++i) bytes += frame.pieces[i].iov_len;
  return bytes;
}

void add_control(msghdr& header, int level, int type, const void* data, size_t bytes) {
  auto* at =
      reinterpret_cast<cmsghdr*>(static_cast<char*>(header.msg_control) + header.msg_controllen);
  at->cmsg_level = level;
  at->cmsg_type = type;
  at->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(at), data, bytes);
  header.msg_controllen += CMSG_SPACE(bytes);
}

// A filter of a UDP socket sees its header before the frame.
constexpr uint32_t kUdpHeader = 8;

class UdpCarrier final : public Carrier {
 public:
  explicit UdpCarrier(UdpSocket socket, uint16_t mtu)
      : socket_(std::move(socket)), mtu_(mtu), own_(pack(socket_.own)), peer_(pack(socket_.peer)) {}
  Path path() const override { return Path::kUdp; }
  int fd() const override { return socket_.fd.value(); }
  uint16_t mtu() const override { return mtu_; }
  uint16_t mtu_to(const PeerAddress& peer) const override {
    return std::min(mtu_, payload_towards(unpack(peer)));
  }
  // Half: each datagram is charged with more than its bytes.
  size_t receive_bytes() const override { return socket_.room.receive / 2; }
  size_t slot_bytes() const override { return kSlotBytes; }
  bool pads() const override { return false; }
  const PeerAddress& own_address() const override { return own_; }
  std::string address_text(const PeerAddress& address, uint16_t) const override {
    UdpPlace place = unpack(address);
    return "l2://udp/" + ip_text(place.address, place.scope) + ":" + std::to_string(place.port);
  }
  bool scatters() const override { return true; }
  bool refused() override { return std::exchange(refused_, false); }
  bool guard(std::span<const uint32_t> connections, uint32_t one_of) override {
    if (connections.size() > kMostGuarded) return false;
    std::vector<sock_filter> code = guard_filter({}, kUdpHeader, connections, one_of);
    return attach_filter(fd(), code) == 0;
  }
  void unguard() override {
    const int unused = 0;  // but asked for
    static_cast<void>(::setsockopt(fd(), SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof(unused)));
  }
  void send(std::span<const FrameOut> frames) override;
  std::span<const FrameIn> receive(ReceiveRoom& room) override;

 private:
  size_t put_together(std::span<const FrameOut> frames, std::span<Together> out) const;
  void address_call(Call& call, const PeerAddress& to, msghdr& header) const;
  bool failed_to_send(int error);
  static size_t scatter(ReceiveRoom& room, std::span<iovec> parts);
  void take(ReceiveRoom& room, size_t slot, const mmsghdr& message);

  UdpSocket socket_;
  uint16_t mtu_;
  PeerAddress own_, peer_;
  bool refused_ = false;
  size_t ask_ = 1;  // slots that the next receive() offers
};

size_t UdpCarrier::put_together(std::span<const FrameOut> frames, std::span<Together> out) const {
  size_t count = 0, segment = 0, joined = 0;
  bool open = false;
  for (size_t i = 0; i < frames.size(); ++i) {
    size_t bytes = size_of(frames[i]);
    bool fits = open && socket_.segments && bytes <= segment && joined + bytes <= kMostTogether &&
                out[count - 1].count < kMostSegments && *frames[i].to == *frames[i - 1].to;
    if (!fits) {
      out[count++] = {.first = i, .count = 0, .bytes = bytes};
      segment = bytes;
      joined = 0;
    }
    ++out[count - 1].count;
    joined += bytes;
    open = bytes == segment;
  }
  return count;
}

void UdpCarrier::address_call(Call& call, const PeerAddress& to, msghdr& header) const {
  if (socket_.connected) return;
  UdpPlace place = unpack(to);
  if (socket_.ipv6) {
    call.to = {};
    call.to.sin6_family = AF_INET6;
    call.to.sin6_addr = place.address;
    call.to.sin6_port = htons(place.port);
    call.to.sin6_scope_id = place.scope;
    header.msg_name = &call.to;
    header.msg_namelen = sizeof(call.to);
  } else {
    call.to_v4 = {};
    call.to_v4.sin_family = AF_INET;
    std::memcpy(&call.to_v4.sin_addr, place.address.s6_addr + 12, 4);
    call.to_v4.sin_port = htons(place.port);
    header.msg_name = &call.to_v4;
    header.msg_namelen = sizeof(call.to_v4);
  }
  if (IN6_IS_ADDR_UNSPECIFIED(&place.local)) return;
  if (socket_.ipv6) {
    in6_pktinfo from{.ipi6_addr = place.local, .ipi6_ifindex = place.scope};
    add_control(header, IPPROTO_IPV6, IPV6_PKTINFO, &from, sizeof(from));
  } else {
    in_pktinfo from{};
    std::memcpy(&from.ipi_spec_dst, place.local.s6_addr + 12, 4);
    add_control(header, IPPROTO_IP, IP_PKTINFO, &from, sizeof(from));
  }
}

// What the last datagrams have met is told at the next call, which then did nothing else:
// true if it is to be made again.
bool UdpCarrier::failed_to_send(int error) {
  if (error != ECONNREFUSED) return error == EINTR;
  refused_ = true;
  return true;
}

void UdpCarrier::send(std::span<const FrameOut> frames) {
  std::array<Together, kBatch> groups;
  std::array<mmsghdr, kBatch> messages;
  std::array<Call, kBatch> calls;
  std::array<iovec, kBatch * kMostPieces> pieces;
  size_t count = put_together(frames, groups), used = 0;
  for (size_t i = 0; i < count; ++i) {
    msghdr& header = messages[i].msg_hdr;
    header = {};
    header.msg_control = calls[i].control;
    header.msg_iov = &pieces[used];
    for (const FrameOut& frame : frames.subspan(groups[i].first, groups[i].count)) {
      std::copy_n(frame.pieces.begin(), frame.count, pieces.begin() + static_cast<long>(used));
      used += frame.count;
      header.msg_iovlen += frame.count;
    }
    address_call(calls[i], *frames[groups[i].first].to, header);
    auto segment = static_cast<uint16_t>(groups[i].bytes);
    if (groups[i].count > 1)
      add_control(header, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof(segment));
  }
  for (size_t sent = 0, again = 0; sent < count;) {
    int taken =
        ::sendmmsg(fd(), messages.data() + sent, static_cast<unsigned>(count - sent), MSG_DONTWAIT);
    int error = taken < 0 ? errno : 0;
    if (taken < 0 && again++ < 2 && failed_to_send(error)) continue;
    again = 0;
    if (taken > 0) {
      sent += static_cast<size_t>(taken);
      continue;
    }
    std::span<const FrameOut> group = frames.subspan(groups[sent].first, groups[sent].count);
    bool full = error == EAGAIN || error == ENOBUFS;
    // The device computes no checksums (EIO), or the way takes smaller datagrams by now: one
    // by one, of which those that fit are taken.
    if (!full && group.size() > 1) {
      segments_refused.add();
      if (error == EIO || error == EOPNOTSUPP) socket_.segments = false;
      for (const FrameOut& frame : group) send({&frame, 1});
      ++sent;
      continue;
    }
    // One that the network refuses is like one that it loses; a full queue takes no more.
    for (size_t i = sent; i < (full ? count : sent + 1); ++i) frames_not_taken.add(groups[i].count);
    if (full) return;
    ++sent;
  }
}

// Where the datagrams of the next slot go if they are those that are expected: headers into the
// slot, payloads to their places, and what is more behind the headers. Returns how many parts that
// makes; 0: nothing is expected.
size_t UdpCarrier::scatter(ReceiveRoom& room, std::span<iovec> parts) {
  const Expected& expected = room.expected;
  if (expected.to == nullptr || expected.payload == 0) return 0;
  const size_t count = std::min({kMostScattered, kSlotBytes / (kDataHeader + expected.payload),
                                 expected.room / expected.payload});
  uint8_t *header = room.slot(0), *payload = expected.to;
  for (size_t i = 0; i < count; ++i, header += kDataHeader, payload += expected.payload) {
    parts[2 * i] = {header, kDataHeader};
    parts[2 * i + 1] = {payload, expected.payload};
  }
  parts[2 * count] = {header, kSlotBytes - count * kDataHeader};
  return count == 0 ? 0 : 2 * count + 1;
}

std::span<const FrameIn> UdpCarrier::receive(ReceiveRoom& room) {
  constexpr size_t kParts = 2 * kMostScattered + 1;
  std::array<mmsghdr, kMostAsked> messages;
  std::array<iovec, std::max(kParts, kMostAsked)> places;
  std::array<Call, kMostAsked> calls;
  const size_t scattered = scatter(room, places);
  // Where the next slot's belong depends on how many are in this one.
  const size_t ask = scattered > 0 ? 1 : ask_;
  for (size_t i = 0; i < ask; ++i) {
    if (scattered == 0) places[i] = {room.slot(i), kSlotBytes};
    messages[i].msg_hdr = {.msg_name = socket_.connected ? nullptr : &calls[i].to,
                           .msg_namelen = socket_.connected ? 0 : socklen_t{sizeof(calls[i].to)},
                           .msg_iov = &places[i],
                           .msg_iovlen = std::max<size_t>(scattered, 1),
                           .msg_control = calls[i].control,
                           .msg_controllen = kControlBytes,
                           .msg_flags = 0};
  }
  room.begin();
  int came = ::recvmmsg(fd(), messages.data(), static_cast<unsigned>(ask), MSG_DONTWAIT, nullptr);
  room.drained = came < static_cast<int>(ask);
  if (came < 0) {
    refused_ = refused_ || errno == ECONNREFUSED;
    room.drained = errno == EAGAIN;
    ask_ = 1;
    return {};
  }
  for (size_t i = 0; i < static_cast<size_t>(came); ++i) take(room, i, messages[i]);
  // Each slot costs its preparation: as many as came, and some more.
  if (scattered == 0) ask_ = std::min(static_cast<size_t>(came) * 2, kMostAsked);
  return room.frames;
}

// One slot of what came: the datagrams in it, the last of which may be shorter.
void UdpCarrier::take(ReceiveRoom& room, size_t slot, const mmsghdr& message) {
  const msghdr& header = message.msg_hdr;
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return frames_truncated.add();
  size_t left = message.msg_len, segment = left;
  bool ce = false;
  UdpPlace from;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr;
       c = CMSG_NXTHDR(const_cast<msghdr*>(&header), c)) {
    int value = 0;
    const void* data = CMSG_DATA(c);
    std::memcpy(&value, data, std::min(sizeof(value), c->cmsg_len - CMSG_LEN(0)));
    if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO)
      segment = static_cast<size_t>(value);
    if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS)
      ce = (value & kEcnBits) == kCongestionExperienced;
    if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS)
      ce = (value & kEcnBits) == kCongestionExperienced;
    if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO)
      std::memcpy(&from.local, data, 16);
    if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
      from.local.s6_addr[10] = from.local.s6_addr[11] = 0xff;
      std::memcpy(from.local.s6_addr + 12,
                  static_cast<const char*>(data) + offsetof(in_pktinfo, ipi_addr), 4);
    }
  }
  const PeerAddress* source = &peer_;
  if (!socket_.connected) {
    const auto* name = static_cast<const sockaddr_in6*>(header.msg_name);
    if (socket_.ipv6) {
      from.address = name->sin6_addr;
      from.scope = name->sin6_scope_id;
    } else {
      from.address.s6_addr[10] = from.address.s6_addr[11] = 0xff;
      std::memcpy(from.address.s6_addr + 12, &reinterpret_cast<const sockaddr_in*>(name)->sin_addr,
                  4);
    }
    from.port = ntohs(name->sin6_port);  // at the same place in both
    room.sources[slot] = pack(from);
    source = &room.sources[slot];
  }
  if (left == 0 || segment == 0 || left > segment * kMostJoined) return frames_truncated.add();
  if (left > segment) datagrams_joined.add();
  const std::span<const iovec> parts(header.msg_iov, header.msg_iovlen);
  const size_t frame = parts.size() > 1 ? parts[0].iov_len + parts[1].iov_len : 0;
  const size_t in_place =
      segment == frame || (segment == left && left < frame) ? parts.size() / 2 : 0;
  const uint8_t* at = room.slot(slot);
  // Datagrams of another size lie across the parts.
  if (parts.size() > 1 && in_place == 0) {
    at = room.join(parts, left);
    room.astray = true;
  }
  if (at == nullptr) return frames_truncated.add();
  for (size_t i = 0; left > 0; ++i) {
    size_t bytes = std::min(left, segment);
    const bool scattered = i < in_place;
    const uint8_t* rest = scattered && bytes > kDataHeader
                              ? static_cast<const uint8_t*>(parts[2 * i + 1].iov_base)
                              : nullptr;
    if (bytes > mtu_) {
      frames_truncated.add();
    } else {
      room.frames.push_back({.from = source, .data = at, .bytes = bytes, .ce = ce, .rest = rest});
    }
    at += scattered ? kDataHeader : bytes;
    left -= bytes;
  }
}

}  // namespace

Result<OpenedCarrier> open_udp_carrier(const std::string& host, uint16_t port) {
  SLUICE_TRY(UdpSocket socket, bind_udp(host, port));
  uint16_t own_port = socket.own.port;
  return OpenedCarrier{
      std::make_unique<UdpCarrier>(std::move(socket), static_cast<uint16_t>(kMostTogether)),
      own_port};
}

Result<UdpMeeting> open_udp_towards(std::span<const SocketAddress> to) {
  SLUICE_TRY(UdpSocket socket, connect_udp(to));
  uint16_t own_port = socket.own.port, payload = payload_towards(socket.peer);
  PeerAddress peer = pack(socket.peer);
  return UdpMeeting{.opened = {std::make_unique<UdpCarrier>(std::move(socket), payload), own_port},
                    .peer = peer};
}

}  // namespace sluice::l2
