// How frames cross: batches of them, gathered from where their bytes lie. The seam between
// SLP's sessions and the kernel, and the carrier of raw frames; knows no session.
#ifndef SLUICE_L2_CARRIER_FRAMES_H_
#define SLUICE_L2_CARRIER_FRAMES_H_

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sluice/api/receipt.h>
#include <sluice/api/tuning.h>
#include <sluice/base/counters.h>
#include <sluice/base/mac_address.h>
#include <sluice/base/result.h>
#include <sluice/l2/carrier/packet_socket.h>
#include <sluice/spi/link.h>

namespace sluice::l2 {

// Where a peer is, as its carrier counts: a MAC address on Ethernet, in UDP an IP address and
// port (udp_socket.h). What tells two peers apart lies in the first 32 bytes, what tells two
// machines apart before them all.
struct PeerAddress {
  std::array<uint8_t, 39> bytes{};
  uint8_t size = 0;
  auto operator<=>(const PeerAddress&) const = default;
};
// Six bytes of a MAC address and zeros, or 16 of an IP address and 4 of its scope.
inline constexpr size_t kMachineBytes = 20;
// Whatever the port: a program that has no privileges has thousands of those.
inline PeerAddress machine_of(PeerAddress address) {
  std::fill(address.bytes.begin() + kMachineBytes, address.bytes.end(), uint8_t{0});
  return address;
}
PeerAddress peer_at(const MacAddress& mac);
// Requires: it is on Ethernet.
MacAddress mac_of(const PeerAddress& address);
std::string mac_text(const PeerAddress& address);

// Bytes of the largest frame that every carrier must take: those of an MTU of 1280 (docs/slp.md,
// section 2).
inline constexpr uint16_t kLeastFrame = 1280 - 48;

// Header, and the pieces of memory that follow it.
inline constexpr size_t kMostPieces = 1 + kMaxPlaces;
struct FrameOut {
  const PeerAddress* to = nullptr;
  std::array<iovec, kMostPieces> pieces;
  size_t count = 0;
};

// Bytes before the payload of DATA: base and extension (docs/slp.md).
inline constexpr size_t kDataHeader = 56;

struct FrameIn {
  // The header, in front of a payload that lies elsewhere.
  size_t present() const { return rest == nullptr ? bytes : kDataHeader; }

  const PeerAddress* from = nullptr;
  const uint8_t* data = nullptr;
  size_t bytes = 0;
  bool ce = false;                // the network says that there is congestion
  const uint8_t* rest = nullptr;  // null: all of it lies at `data`
};

// The frames that are likely to come next: DATA of one transfer, one after the other, nothing of
// which has come before. Their payload may be received where it belongs, and must be moved away
// before anything else is done with it should they turn out to be others.
struct Expected {
  // It is what was expected for that place.
  bool is(const FrameIn& frame) const;

  uint8_t* to = nullptr;  // where the first one's payload belongs; null: nothing is expected
  size_t room = 0;        // bytes from there on
  size_t payload = 0;     // of each frame
  uint32_t connection = 0, transfer = 0;  // as their headers have it
  uint64_t offset = 0;                    // the first one's there
};

class Port;

// Most frames to be sent in one call; Tuning::l2_batch_frames may be fewer.
inline constexpr size_t kBatch = kMostBatchFrames;

// Where frames are received; one for all carriers of a context, which use it in turn.
class ReceiveRoom {
 public:
  static constexpr size_t kSlots = 32;
  // What the kernel may put into one slot; frames that it put together are cut apart.
  void reserve(size_t slot_bytes);
  uint8_t* slot(size_t i) { return memory_.get() + i * slot_bytes_; }
  size_t slot_bytes() const { return slot_bytes_; }

  // Joins the parts of a frame, or of several from one slot, until the room is used again. Null:
  // the parts are more than a receive() takes.
  uint8_t* join(std::span<const iovec> parts, size_t bytes);
  void begin() {
    frames.clear();
    joined_ = 0;
    astray = false;
  }

  // Some frames of the last receive() wait for the next turn: of this port, whose other frames come
  // after them.
  Port* owner = nullptr;
  size_t next = 0;  // the first of those frames

  Expected expected;  // of the carrier whose turn it is
  std::array<PeerAddress, kSlots> sources;
  std::vector<FrameIn> frames;
  bool drained = false;  // there is no more now
  bool astray = false;   // something else came than what was expected

 private:
  static constexpr size_t kJoinedBytes = 512 << 10;
  std::unique_ptr<uint8_t[]> memory_, joining_;
  size_t slot_bytes_ = 0, joined_ = 0;
};

// Frames for which the kernel had no room, or that the network does not take.
extern Counter frames_not_taken;
// What cannot be a frame, by its size or its source.
extern Counter frames_truncated;

class Carrier {
 public:
  virtual ~Carrier() = default;
  virtual Path path() const = 0;
  // The kernel copies each frame once at each end.
  virtual bool kernel_copies() const { return true; }
  // Readable when frames have come.
  virtual int fd() const = 0;
  // Bytes of the largest frame that the carrier takes, now, and of the largest that the way to
  // this peer takes; never more than when it was opened. Blocks: never. Cost: a system call,
  // for when a connection begins, and twice a second.
  virtual uint16_t mtu() const = 0;
  virtual uint16_t mtu_to(const PeerAddress& peer) const = 0;
  // Payload for which the kernel has room until receive() is called.
  virtual size_t receive_bytes() const = 0;
  // Size of the slots that receive() needs.
  virtual size_t slot_bytes() const = 0;
  // Frames may come with bytes behind them that are not theirs.
  virtual bool pads() const = 0;
  virtual const PeerAddress& own_address() const = 0;
  // As users write it: "l2://eth0/02:00:00:00:00:0b:7000".
  virtual std::string address_text(const PeerAddress& address, uint16_t port) const = 0;
  // The network said that nobody is there, since this was asked last. Anybody may have said it.
  virtual bool refused() { return false; }
  // The bytes have been copied when it returns. What finds no room is dropped and counted:
  // the session sends its content again. Blocks: never. At most kBatch frames.
  virtual void send(std::span<const FrameOut> frames) = 0;
  // Ok, or why nothing leaves or comes: the interface is down, its cable is out, or it is gone.
  virtual Status look() const { return Status(); }
  // The next frames, valid until the room is used again or release() is called.
  virtual std::span<const FrameIn> receive(ReceiveRoom& room) = 0;
  virtual void release() {}
  // Under a flood: from now on frames that are to none of these connections are dropped, but for
  // one of so many, until unguard(): by the kernel (guard_filter.h), or unread. False: it cannot,
  // since they are more than kMostGuarded, or its socket takes no filter of ours; what was set
  // before holds.
  virtual bool guard(std::span<const uint32_t> connections, uint32_t one_of) = 0;
  virtual void unguard() = 0;
  // The descriptor tells an error, which is over when it was asked for: look() says what is wrong.
  virtual void take_error() {}
  // receive() minds what is expected.
  virtual bool scatters() const { return false; }
  // Frames are looked for without a system call, in memory that costs ReceiveRing::kRingBytes.
  virtual bool has_ring() const { return false; }
};

// A carrier at the port that is its own.
struct OpenedCarrier {
  std::unique_ptr<Carrier> carrier;
  uint16_t port;
};

// Ok, or what keeps frames from crossing: the interface is down, has no carrier or is gone.
// `questions`: any socket that answers SIOCGIFFLAGS.
Status look_at_interface(int questions, const std::string& interface);
// Its MTU, at most `most`; `most` if it does not tell.
uint16_t mtu_of_interface(int questions, const std::string& interface, uint16_t most);

// SLP's EtherType at one interface, towards one port; 0: any that is free above 32767. The
// port is this process's until the carrier goes. Without the privilege a broker is asked, if
// there is one (broker.h). With `ring`, and a kernel that makes one, frames come into a ring.
// Frames leave by the interface's queueing discipline unless qdisc.h says otherwise.
// Errors: kAccessDenied (CAP_NET_RAW), kInvalidArgument (no such interface: the detail names
// those there are; the port is taken), kNoMemory.
Result<OpenedCarrier> open_packet_carrier(const std::string& interface, uint16_t port, bool ring);

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_FRAMES_H_
