// How frames cross: batches of them, gathered from where their bytes lie. The seam between
// SLP's sessions and the kernel; knows no session. Packet sockets are opened here only.
#ifndef SLUICE_L2_FRAMES_H_
#define SLUICE_L2_FRAMES_H_

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sluice/base/result.h>
#include <sluice/proto/link.h>

namespace sluice::l2 {

// Where a peer is, as its carrier counts: a MAC address on Ethernet.
struct PeerAddress {
  std::array<uint8_t, 18> bytes{};
  uint8_t size = 0;
  bool operator==(const PeerAddress&) const = default;
};
// "02:00:00:00:00:0b", six pairs of digits as Address::parse() takes them.
Result<PeerAddress> parse_mac(const std::string& text);
std::string mac_text(const PeerAddress& address);

// Header, and the pieces of memory that follow it.
inline constexpr size_t kMostPieces = 1 + proto::kMaxPlaces;
struct FrameOut {
  const PeerAddress* to = nullptr;
  std::array<iovec, kMostPieces> pieces;
  size_t count = 0;
};

struct FrameIn {
  PeerAddress from;
  const uint8_t* data = nullptr;
  size_t bytes = 0;
};

// Frames in one call of the kernel.
inline constexpr size_t kBatch = 32;

// Where a batch of frames is received; one for all carriers of a context, which use it in turn.
class ReceiveRoom {
 public:
  // For frames of up to `frame_bytes`.
  void reserve(size_t frame_bytes);
  uint8_t* slot(size_t i) { return memory_.data() + i * slot_bytes_; }
  size_t slot_bytes() const { return slot_bytes_; }
  std::array<FrameIn, kBatch> frames;

 private:
  std::vector<uint8_t> memory_;
  size_t slot_bytes_ = 0;
};

class Carrier {
 public:
  virtual ~Carrier() = default;
  // Readable when frames have come.
  virtual int fd() const = 0;
  // Bytes of the largest frame that the carrier takes.
  virtual uint16_t mtu() const = 0;
  virtual const PeerAddress& own_address() const = 0;
  // The bytes have been copied when it returns. What finds no room is dropped and counted:
  // the session sends its content again. Blocks: never. At most kBatch frames.
  virtual void send(std::span<const FrameOut> frames) = 0;
  // The next frames, valid until the room is used again; none: empty.
  virtual std::span<const FrameIn> receive(ReceiveRoom& room) = 0;
};

// SLP's EtherType at one interface, towards one port. Errors: kAccessDenied (CAP_NET_RAW),
// kInvalidArgument (no such interface: the detail names those there are), kNoMemory.
Result<std::unique_ptr<Carrier>> open_packet_carrier(const std::string& interface, uint16_t port);

// Whether this process may open packet sockets: ok, or what to do about it.
Status packet_sockets_allowed();

// Takes a port of an interface for this process, until the descriptor is closed: packet
// sockets share, so an abstract Unix name that only one can have stands for it.
// Errors: kInvalidArgument (taken), kNoMemory.
Result<int> claim_port(const std::string& interface, uint16_t port);

}  // namespace sluice::l2

#endif  // SLUICE_L2_FRAMES_H_
