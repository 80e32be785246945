// Received frames in memory that the kernel shares (packet(7), TPACKET_V2): a look at them is
// no system call. Knows no protocol; the frames are the peer's, and written by the kernel only.
#ifndef SLUICE_L2_CARRIER_RING_H_
#define SLUICE_L2_CARRIER_RING_H_

#include <cstddef>
#include <cstdint>

#include <sluice/base/result.h>

namespace sluice::l2 {

// As it lies in the ring, until release().
struct RingFrame {
  const uint8_t* data;
  size_t bytes;
  const uint8_t* source;  // a MAC address, or null
  bool whole;
};

class ReceiveRing {
 public:
  // Bytes of every ring: what a few sessions have under way. Of one interface's MTU.
  static constexpr size_t kRingBytes = 4 << 20;
  // For a socket that is not bound yet. Errors: kUnsupported, kNoMemory.
  static Result<ReceiveRing> make(int socket, size_t mtu);
  ReceiveRing(ReceiveRing&& other) noexcept;
  ReceiveRing& operator=(ReceiveRing&&) = delete;
  ~ReceiveRing();

  // The next frame, if it has come.
  bool next(RingFrame& out);
  // All that next() gave belongs to the kernel again.
  void release();

 private:
  ReceiveRing() = default;
  uint8_t* slot(size_t index) const {
    return memory_ + index / per_block_ * block_bytes_ + index % per_block_ * slot_bytes_;
  }

  uint8_t* memory_ = nullptr;
  size_t bytes_ = 0, slot_bytes_ = 0, block_bytes_ = 0, per_block_ = 0, slots_ = 0;
  size_t first_ = 0, taken_ = 0;  // given by next() and not released: from first_ on
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_RING_H_
