#include <sluice/l2/carrier/xdp_carrier.h>

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <sluice/base/counters.h>
#include <sluice/l2/carrier/packet_socket.h>
#include <sluice/l2/carrier/xdp_interface.h>
#include <sluice/l2/carrier/xdp_places.h>
#include <sluice/l2/carrier/xdp_program.h>

#include "kernel_compat/slp/slp_wire.h"

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/xdp_carrier";
constexpr size_t kMacBytes = 6;
constexpr size_t kHeader = XdpInterface::kEthernetHeader;
constexpr size_t kPortAt = 4;  // of the destination port in SLP's base
// One call of the kernel sends 32 frames at least, if the device takes them.
constexpr size_t kFramesPerCall = 32;
constexpr size_t kCacheLine = 64;
constexpr size_t kSmallFrameLines = 3;
constexpr size_t kConnectionAt = 8;
// A guarded port may look through a whole ring for frames that are its connections'.
constexpr uint32_t kGuardedBatches = XdpInterface::kLargeRing / ReceiveRoom::kSlots;

Counter strangers_dropped("l2.strangers_dropped");

class XdpCarrier final : public Carrier {
 public:
  XdpCarrier(std::shared_ptr<XdpInterface> interface, XdpSocket& socket, PortClaim claimed,
             uint16_t mtu)
      : interface_(std::move(interface)),
        socket_(socket),
        claim_(std::move(claimed.claim)),
        port_(claimed.port),
        mtu_(mtu),
        own_(peer_at(interface_->place().mac)) {}
  ~XdpCarrier() override {
    if (interface_->forked()) return;
    release();
    interface_->close(socket_, port_);
  }
  XdpCarrier(const XdpCarrier&) = delete;
  XdpCarrier& operator=(const XdpCarrier&) = delete;

  Path path() const override { return Path::kXdp; }
  bool kernel_copies() const override { return !interface_->zero_copy(); }
  int fd() const override { return socket_.fd.value(); }
  uint16_t mtu() const override { return mtu_of_interface(claim_.value(), name(), mtu_); }
  uint16_t mtu_to(const PeerAddress&) const override { return mtu(); }
  size_t slot_bytes() const override { return 0; }  // frames lie in the interface's memory
  // Half, as of the packet ring: acknowledgements take places as well.
  size_t receive_bytes() const override { return socket_.rx.size * size_t{mtu_} / 2; }
  bool pads() const override { return true; }
  const PeerAddress& own_address() const override { return own_; }
  std::string address_text(const PeerAddress& address, uint16_t port) const override {
    return "l2://xdp/" + name() + "/" + mac_text(address) + ":" + std::to_string(port);
  }
  Status look() const override {
    SLUICE_RETURN_IF_ERROR(look_at_interface(claim_.value(), name()));
    return interface_->look();
  }

  void send(std::span<const FrameOut> frames) override {
    std::array<uint64_t, kBatch> places;
    XdpRing<xdp_desc>& tx = socket_.tx;
    uint32_t at = *tx.producer;
    const size_t room = tx.size - (at - tx.load(tx.consumer));
    const size_t wanted = std::min(frames.size(), room);
    const size_t taken = interface_->take_places(socket_, std::span(places).first(wanted));
    if (taken < frames.size()) frames_not_taken.add(frames.size() - taken);
    for (size_t i = 0; i < taken; ++i)
      tx.at(at++) = {.addr = places[i], .len = write(frames[i], places[i]), .options = 0};
    tx.store(tx.producer, at);
    kick(at);
  }

  std::span<const FrameIn> receive(ReceiveRoom& room) override {
    uint32_t batches = one_of_ == 1 ? 1 : kGuardedBatches;
    do receive_batch(room);
    while (room.frames.empty() && !room.drained && --batches > 0);
    return room.frames;
  }
  // The places first: a port never holds more of them than its ring.
  void release() override {
    if (read_ == 0) return;
    XdpRing<xdp_desc>& rx = socket_.rx;
    const uint32_t at = *rx.consumer;
    interface_->give_back(std::span(places_).first(read_));
    rx.store(rx.consumer, at + read_);
    read_ = 0;
  }
  bool has_ring() const override { return false; }  // its memory is the interface's
  // AF_XDP sockets have no filters, and a borrower cannot write to the program's maps: the frames
  // are dropped here, unread.
  bool guard(std::span<const uint32_t> connections, uint32_t one_of) override {
    guarded_.assign(connections.begin(), connections.end());
    std::sort(guarded_.begin(), guarded_.end());
    one_of_ = one_of;
    return true;
  }
  void unguard() override { one_of_ = 1; }
  void take_error() override {
    int error = 0;
    socklen_t length = sizeof(error);
    (void)::getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  }

 private:
  const std::string& name() const { return interface_->place().interface; }

  void receive_batch(ReceiveRoom& room) {
    release();
    room.begin();
    XdpRing<xdp_desc>& rx = socket_.rx;
    const uint32_t at = *rx.consumer;
    // Before it is known to have come, or with the ring's index: its lines are another
    // processor's. Its place is most likely that of one round of the ring before.
    prefetch(rx.read(at));
    read_ = std::min<uint32_t>(rx.waiting(at), ReceiveRoom::kSlots);
    std::array<xdp_desc, ReceiveRoom::kSlots> came;
    for (uint32_t i = 0; i < read_; ++i) {
      came[i] = rx.read(at + i);
      places_[i] = came[i].addr;
      if (i > 0) prefetch(came[i]);
    }
    for (uint32_t i = 0; i < read_; ++i) take(room, came[i], i);
    if (read_ == 0) interface_->wake_if_asked(socket_);
    room.drained = read_ < ReceiveRoom::kSlots;
  }

  // The frame into its place, behind its Ethernet header; returns its bytes.
  uint32_t write(const FrameOut& frame, uint64_t place) {
    uint8_t* start = interface_->at(place);
    std::memcpy(start, frame.to->bytes.data(), kMacBytes);
    std::memcpy(start + kMacBytes, own_.bytes.data(), kMacBytes);
    start[2 * kMacBytes] = SLP_ETHERTYPE >> 8;
    start[2 * kMacBytes + 1] = SLP_ETHERTYPE & 0xff;
    uint8_t* to = start + kHeader;
    for (size_t i = 0; i < frame.count; ++i) {
      std::memcpy(to, frame.pieces[i].iov_base, frame.pieces[i].iov_len);
      to += frame.pieces[i].iov_len;
    }
    return static_cast<uint32_t>(to - start);
  }

  // What the kernel leaves in the ring, since the device is busy, goes with the next frames.
  void kick(uint32_t end) {
    XdpRing<xdp_desc>& tx = socket_.tx;
    if (!tx.wants_wakeup()) return;
    const size_t tries = tx.size / kFramesPerCall + 1;
    for (size_t i = 0; i < tries && tx.load(tx.consumer) != end; ++i) {
      if (::sendto(socket_.send_fd.value(), nullptr, 0, MSG_DONTWAIT, nullptr, 0) >= 0 ||
          errno == EAGAIN || errno == EINTR)
        continue;
      return;  // ENOBUFS, ENETDOWN: look() says what is wrong
    }
  }

  void prefetch(const xdp_desc& came) const {
    const uint8_t* start = interface_->frame(came);
    if (start == nullptr) return;
    for (size_t line = 0; line < kSmallFrameLines; ++line)
      __builtin_prefetch(start + line * kCacheLine);
  }

  void take(ReceiveRoom& room, const xdp_desc& came, uint32_t slot) {
    const uint8_t* start = interface_->frame(came);
    if (start == nullptr) return count_wrong_place();
    if (came.len < kHeader + SLP_BASE_BYTES || came.len > kHeader + mtu_)
      return frames_truncated.add();
    // A late one of the port that had this socket before.
    if (slp_load16(start + kHeader + kPortAt) != port_) return;
    if (one_of_ > 1 && is_dropped(slp_load32(start + kHeader + kConnectionAt))) return;
    PeerAddress& source = room.sources[slot];
    source = {.size = kMacBytes};
    std::memcpy(source.bytes.data(), start + kMacBytes, kMacBytes);
    room.frames.push_back({.from = &source, .data = start + kHeader, .bytes = came.len - kHeader});
  }

  bool is_dropped(uint32_t connection) {
    if (std::binary_search(guarded_.begin(), guarded_.end(), connection)) return false;
    if ((strangers_++ & (one_of_ - 1)) == 0) return false;
    strangers_dropped.add();
    return true;
  }

  std::shared_ptr<XdpInterface> interface_;  // until its last port goes
  XdpSocket& socket_;
  Descriptor claim_;
  uint16_t port_, mtu_;
  PeerAddress own_;
  uint32_t read_ = 0;  // of the ring: given by receive() and not released
  std::array<uint64_t, ReceiveRoom::kSlots> places_;  // of these
  std::vector<uint32_t> guarded_;                     // sorted
  uint32_t one_of_ = 1;  // strangers that pass; 1: all, without a guard
  uint32_t strangers_ = 0;
};

}  // namespace

Result<OpenedCarrier> open_xdp_carrier(const std::string& interface, uint16_t port) {
  SLUICE_TRY(std::shared_ptr<XdpInterface> there, XdpInterface::of(interface));
  if (there->place().mtu < kLeastFrame) {
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  "the MTU of " + interface + " is " + std::to_string(there->place().mtu) +
                      "; use tcp:// there: SLP needs " + std::to_string(kLeastFrame));
  }
  SLUICE_TRY(XdpInterface::Port opened, there->open(port));
  port = opened.claimed.port;
  const auto most = static_cast<uint16_t>(there->most_frame());
  const uint16_t mtu = mtu_of_interface(opened.claimed.claim.value(), interface, most);
  auto carrier = std::make_unique<XdpCarrier>(std::move(there), *opened.socket,
                                              std::move(opened.claimed), mtu);
  return OpenedCarrier{std::move(carrier), port};
}

Status xdp_allowed() { return xdp_programs_allowed(); }

}  // namespace sluice::l2
