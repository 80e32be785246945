// The memory that an interface's frames lie in, and which of its places the kernel has: the fill
// ring gives it places for frames that come, the sent ring has those of frames that have left.
// What a ring names is checked before it is used: whoever has a copy of a socket, or has lent it,
// can write there. Knows no sockets; whoever calls has locked it.
#ifndef SLUICE_L2_CARRIER_XDP_PLACES_H_
#define SLUICE_L2_CARRIER_XDP_PLACES_H_

#include <linux/if_xdp.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::l2 {

// An entry of a ring as it is now: whoever shares the ring may change it, so only what was read
// once is checked and used.
inline uint64_t read_once(const volatile uint64_t& shared) { return shared; }
inline xdp_desc read_once(const volatile xdp_desc& shared) {
  return {.addr = shared.addr, .len = shared.len, .options = 0};
}

// One of the rings that a socket shares with the kernel: one side produces, the other consumes.
template <typename Entry>
struct XdpRing {
  uint32_t load(const uint32_t* index) const {
    return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(index))
        .load(std::memory_order_acquire);  // what the kernel wrote before it said so
  }
  void store(uint32_t* index, uint32_t value) const {
    std::atomic_ref<uint32_t>(*index).store(value, std::memory_order_release);
  }
  Entry& at(uint32_t index) const { return entries[index & (size - 1)]; }
  Entry read(uint32_t index) const { return read_once(at(index)); }
  bool wants_wakeup() const { return (load(flags) & XDP_RING_NEED_WAKEUP) != 0; }
  // Entries from `at` on, for the consumer; none where the ring says that it holds more than it
  // can.
  uint32_t waiting(uint32_t at) const {
    const uint32_t count = load(producer) - at;
    return count <= size ? count : 0;
  }

  uint32_t *producer = nullptr, *consumer = nullptr, *flags = nullptr;
  Entry* entries = nullptr;
  uint32_t size = 0;
  void* memory = nullptr;
  size_t bytes = 0;
};

// Places of one port for frames to be sent.
struct XdpSends {
  std::vector<uint64_t> free;
  size_t count = 0;  // in all
};

class XdpPlaces {
 public:
  // Places for frames that come are first in the memory, then those to be sent, of which owners
  // get whole groups.
  struct Shape {
    uint32_t receive, send, group;
    size_t place_bytes;  // a power of two
  };
  void begin(uint8_t* memory, const Shape& shape) {
    memory_ = memory;
    shape_ = shape;
  }
  size_t place_bytes() const { return shape_.place_bytes; }
  size_t bytes() const { return (size_t{shape_.receive} + shape_.send) * shape_.place_bytes; }
  uint8_t* at(uint64_t address) const { return memory_ + address; }
  // The bytes of a frame that has come; null: they are not all in one place for such frames.
  const uint8_t* frame(const xdp_desc& came) const {
    const uint64_t within = came.addr & (shape_.place_bytes - 1);
    const bool inside = is_for_receiving(came.addr) && within + came.len <= shape_.place_bytes;
    return inside ? memory_ + came.addr : nullptr;
  }

  // So many more places for frames that come, as far as there are any.
  void offer(uint32_t count);
  // Addresses that came, anywhere in their places. Those that name none are counted.
  void give_back(std::span<const uint64_t> addresses);
  // A group, or several, for one owner. Requires: there are so many.
  void own(XdpSends& sends, uint32_t count);
  // Those that have left, to their owners.
  void take_back_sent();

  XdpRing<uint64_t> fill, sent;

 private:
  bool is_for_receiving(uint64_t address) const {
    return address < uint64_t{shape_.receive} * shape_.place_bytes;
  }

  uint8_t* memory_ = nullptr;
  Shape shape_{};
  uint32_t offered_ = 0;           // places that have been in the fill ring
  std::vector<XdpSends*> owners_;  // of each group
};

// A descriptor that names no place.
void count_wrong_place();

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_XDP_PLACES_H_
