#include <sluice/l2/carrier/frames.h>

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include <sluice/base/log.h>
#include <sluice/l2/carrier/broker.h>
#include <sluice/l2/carrier/guard_filter.h>
#include <sluice/l2/carrier/interfaces.h>
#include <sluice/l2/carrier/packet_socket.h>
#include <sluice/l2/carrier/qdisc.h>
#include <sluice/l2/carrier/ring.h>

#include "kernel_compat/slp/slp_wire.h"

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/frames";
constexpr size_t kMacBytes = 6;
Counter rings_refused("l2.rings_refused");
Counter bypasses_refused("l2.qdisc_bypasses_refused");

class PacketCarrier final : public Carrier {
 public:
  struct Place {
    std::string name;
    int index;
    uint16_t mtu;
    PeerAddress own;
    size_t room;  // of the socket
  };
  PacketCarrier(PacketSocket socket, Place place, std::optional<ReceiveRing> ring)
      : fd_(std::move(socket.fd)),
        claim_(std::move(socket.claim)),
        port_(socket.port),
        place_(std::move(place)),
        ring_(std::move(ring)) {}
  Path path() const override { return Path::kPacket; }
  int fd() const override { return fd_.value(); }
  uint16_t mtu() const override { return mtu_of_interface(fd_.value(), place_.name, place_.mtu); }
  uint16_t mtu_to(const PeerAddress&) const override { return mtu(); }
  // One more, so that what is longer is seen to be.
  size_t slot_bytes() const override { return size_t{place_.mtu} + 1; }
  // Half: a frame takes a whole slot of the ring, or is charged with its page.
  size_t receive_bytes() const override {
    return (ring_ ? ReceiveRing::kRingBytes : place_.room) / 2;
  }
  bool pads() const override { return true; }  // up to Ethernet's least length
  const PeerAddress& own_address() const override { return place_.own; }
  std::string address_text(const PeerAddress& address, uint16_t port) const override {
    return "l2://" + place_.name + "/" + mac_text(address) + ":" + std::to_string(port);
  }

  Status look() const override { return look_at_interface(fd_.value(), place_.name); }

  void send(std::span<const FrameOut> frames) override {
    std::array<mmsghdr, kBatch> messages;
    std::array<sockaddr_ll, kBatch> targets;
    for (size_t i = 0; i < frames.size(); ++i) {
      targets[i] = target(frames[i]);
      msghdr& header = messages[i].msg_hdr;
      header = {};
      header.msg_name = &targets[i];
      header.msg_namelen = sizeof(targets[i]);
      header.msg_iov = const_cast<iovec*>(frames[i].pieces.data());
      header.msg_iovlen = frames[i].count;
    }
    size_t sent = 0;
    while (sent < frames.size()) {
      int taken = frames.size() == 1
                      ? (::sendmsg(fd_.value(), &messages[0].msg_hdr, MSG_DONTWAIT) < 0 ? -1 : 1)
                      : ::sendmmsg(fd_.value(), messages.data() + sent,
                                   static_cast<unsigned>(frames.size() - sent), MSG_DONTWAIT);
      if (taken < 0 && errno == EINTR) continue;
      // One that the device refuses is like one lost on the wire; a full socket takes no more.
      // ENOBUFS may be one frame's own fault (veth: larger than the other end's MTU), and what
      // comes after it may be the small one that shall find that out.
      bool full = taken < 0 && errno == EAGAIN;
      if (taken <= 0) frames_not_taken.add(full ? frames.size() - sent : 1);
      if (full) return;
      sent += taken > 0 ? static_cast<size_t>(taken) : 1;
    }
  }

  bool has_ring() const override { return ring_.has_value(); }
  bool guard(std::span<const uint32_t> connections, uint32_t one_of) override {
    return connections.size() <= kMostGuarded &&
           guard_packet_socket(fd_.value(), port_, connections, one_of) == 0;
  }
  // A filter that could be changed before can be now.
  void unguard() override { static_cast<void>(unguard_packet_socket(fd_.value(), port_)); }
  void take_error() override {
    int error = 0;
    socklen_t length = sizeof(error);
    (void)::getsockopt(fd_.value(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  void release() override {
    if (ring_) ring_->release();
  }

  std::span<const FrameIn> receive(ReceiveRoom& room) override {
    return ring_ ? receive_from_ring(room) : receive_by_calls(room);
  }

 private:
  sockaddr_ll target(const FrameOut& frame) const {
    sockaddr_ll to{};
    to.sll_family = AF_PACKET;
    to.sll_protocol = htons(SLP_ETHERTYPE);
    to.sll_ifindex = place_.index;
    to.sll_halen = kMacBytes;
    std::memcpy(to.sll_addr, frame.to->bytes.data(), kMacBytes);
    return to;
  }

  std::span<const FrameIn> receive_from_ring(ReceiveRoom& room) {
    room.begin();
    RingFrame frame;
    size_t taken = 0;
    for (; taken < ReceiveRoom::kSlots && ring_->next(frame); ++taken) {
      if (!frame.whole || frame.source == nullptr || frame.bytes > place_.mtu) {
        frames_truncated.add();
        continue;
      }
      room.sources[taken] = {.size = kMacBytes};
      std::memcpy(room.sources[taken].bytes.data(), frame.source, kMacBytes);
      room.frames.push_back(
          {.from = &room.sources[taken], .data = frame.data, .bytes = frame.bytes});
    }
    room.drained = taken < ReceiveRoom::kSlots;
    return room.frames;
  }

  std::span<const FrameIn> receive_by_calls(ReceiveRoom& room) {
    constexpr size_t kSlots = ReceiveRoom::kSlots;
    std::array<mmsghdr, kSlots> messages;
    std::array<iovec, kSlots> places;
    std::array<sockaddr_ll, kSlots> sources;
    for (size_t i = 0; i < ask_; ++i) {
      places[i] = {room.slot(i), room.slot_bytes()};
      msghdr& header = messages[i].msg_hdr;
      header = {};
      header.msg_name = &sources[i];
      header.msg_namelen = sizeof(sources[i]);
      header.msg_iov = &places[i];
      header.msg_iovlen = 1;
    }
    int came = ::recvmmsg(fd_.value(), messages.data(), static_cast<unsigned>(ask_), MSG_DONTWAIT,
                          nullptr);
    room.begin();
    room.drained = came < static_cast<int>(ask_);
    // Each slot costs its preparation: as many as came, and some more.
    ask_ = std::clamp<size_t>(static_cast<size_t>(std::max(came, 0)) * 2, 1, kSlots);
    for (size_t i = 0; i < static_cast<size_t>(std::max(came, 0)); ++i) {
      if ((messages[i].msg_hdr.msg_flags & MSG_TRUNC) != 0 || messages[i].msg_len > place_.mtu ||
          sources[i].sll_halen != kMacBytes) {
        frames_truncated.add();
        continue;
      }
      room.sources[i] = {.size = kMacBytes};  // another carrier's may have been longer
      std::memcpy(room.sources[i].bytes.data(), sources[i].sll_addr, kMacBytes);
      room.frames.push_back(
          {.from = &room.sources[i], .data = room.slot(i), .bytes = messages[i].msg_len});
    }
    return room.frames;
  }

  Descriptor fd_, claim_;
  uint16_t port_;
  Place place_;
  size_t ask_ = 1;  // slots that the next call offers
  std::optional<ReceiveRing> ring_;
};

}  // namespace

Counter frames_not_taken("l2.frames_not_taken");
Counter frames_truncated("l2.frames_truncated");

PeerAddress peer_at(const MacAddress& mac) {
  PeerAddress address{.size = kMacBytes};
  std::copy(mac.begin(), mac.end(), address.bytes.begin());
  return address;
}

MacAddress mac_of(const PeerAddress& address) {
  MacAddress mac;
  std::copy_n(address.bytes.begin(), mac.size(), mac.begin());
  return mac;
}

std::string mac_text(const PeerAddress& address) { return sluice::mac_text(mac_of(address)); }

uint16_t mtu_of_interface(int questions, const std::string& interface, uint16_t most) {
  ifreq request = request_for(interface);
  bool known = ::ioctl(questions, SIOCGIFMTU, &request) == 0;
  return known ? static_cast<uint16_t>(std::clamp<int>(request.ifr_mtu, kLeastFrame, most)) : most;
}

Status look_at_interface(int questions, const std::string& interface) {
  ifreq request = request_for(interface);
  std::string why;
  if (::ioctl(questions, SIOCGIFFLAGS, &request) != 0) {
    why = "the interface " + interface + " is gone";
  } else if ((request.ifr_flags & IFF_UP) == 0) {
    why = "the interface " + interface + " is down; ip link set " + interface +
          " up, and connect again";
  } else if ((request.ifr_flags & IFF_RUNNING) == 0) {
    why = "the interface " + interface +
          " has no carrier: its cable is out, or the other end is down";
  }
  return why.empty() ? Status() : Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, why);
}

void ReceiveRoom::reserve(size_t slot_bytes) {
  if (slot_bytes <= slot_bytes_) return;
  slot_bytes_ = slot_bytes;
  // Not touched before it is used.
  memory_ = std::make_unique_for_overwrite<uint8_t[]>(kSlots * slot_bytes_);
}

uint8_t* ReceiveRoom::join(std::span<const iovec> parts, size_t bytes) {
  if (joining_ == nullptr) joining_ = std::make_unique_for_overwrite<uint8_t[]>(kJoinedBytes);
  if (bytes > kJoinedBytes - joined_) return nullptr;
  uint8_t* start = joining_.get() + joined_;
  joined_ += bytes;
  uint8_t* to = start;
  for (const iovec& part : parts) {
    size_t step = std::min(bytes, part.iov_len);
    std::memcpy(to, part.iov_base, step);
    to += step;
    bytes -= step;
  }
  return start;
}

static_assert(kDataHeader == SLP_BASE_BYTES + SLP_DATA_BYTES);

bool Expected::is(const FrameIn& frame) const {
  if (frame.bytes <= kDataHeader || frame.data[0] != (SLP_VERSION << 5 | SLP_DATA)) return false;
  const bool plain = (frame.data[1] & (SLP_FLAG_PCRC | SLP_FLAG_SEALED)) == 0;
  const uint8_t* extension = frame.data + SLP_BASE_BYTES;
  return plain && slp_load16(frame.data + 6) == frame.bytes - kDataHeader &&
         slp_load32(frame.data + 8) == connection && slp_load32(extension + 8) == transfer &&
         slp_load64(extension) - offset == static_cast<uint64_t>(frame.rest - to);
}

Result<OpenedCarrier> open_packet_carrier(const std::string& interface, uint16_t port, bool ring) {
  Result<PacketSocket> opened = open_packet_socket(interface, port);
  if (opened.code() == Code::kAccessDenied && broker_is_there(interface))
    opened = borrow_packet_socket(interface, port);
  if (!opened.ok()) return opened.status();
  ifreq request = request_for(interface);
  if (::ioctl(opened->fd.value(), SIOCGIFMTU, &request) != 0) {
    return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                  "the interface " + interface + " tells no MTU", errno);
  }
  auto mtu = static_cast<uint16_t>(std::clamp(request.ifr_mtu, 0, 65535));
  if (mtu < kLeastFrame) {
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  "the MTU of " + interface + " is " + std::to_string(mtu) +
                      "; use tcp:// there: SLP needs " + std::to_string(kLeastFrame));
  }
  sockaddr_ll bound{};
  int room = 0;
  socklen_t length = sizeof(bound), room_length = sizeof(room);
  if (::getsockname(opened->fd.value(), reinterpret_cast<sockaddr*>(&bound), &length) != 0 ||
      bound.sll_halen != kMacBytes ||
      ::getsockopt(opened->fd.value(), SOL_SOCKET, SO_RCVBUF, &room, &room_length) != 0) {
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  interface + " is no Ethernet: it has no MAC address");
  }
  if (qdisc_bypass_wanted()) {
    Status around = bypass_qdisc(opened->fd.value(), interface, bound.sll_ifindex);
    if (!around.ok()) {
      bypasses_refused.add();
      log(LogLevel::kWarning, "SLUICE_L2_QDISC_BYPASS: " + std::string(around.detail()));
    }
  }
  PeerAddress own{.size = kMacBytes};
  std::memcpy(own.bytes.data(), bound.sll_addr, kMacBytes);
  std::optional<ReceiveRing> made;
  if (ring) {
    auto tried = ReceiveRing::make(opened->fd.value(), mtu);
    if (tried.ok()) made.emplace(std::move(tried).value());
    if (!tried.ok()) rings_refused.add();
  }
  port = opened->port;
  PacketCarrier::Place place{interface, bound.sll_ifindex, mtu, own, static_cast<size_t>(room)};
  auto carrier =
      std::make_unique<PacketCarrier>(std::move(*opened), std::move(place), std::move(made));
  return OpenedCarrier{std::move(carrier), port};
}

}  // namespace sluice::l2
