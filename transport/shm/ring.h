// A one-way queue of control messages in shared memory: one writer, one reader, no
// lock. Knows memory and atomics only; who maps it and who is woken is the link's matter.
//
// Slots of 128 bytes, each with a stamp of 8. A message lies in consecutive slots, 120
// bytes in each. Position p (slots written since the beginning) carries stamp p + 1 in
// the message's first slot: published last, with release, so that a reader which sees it
// sees all slots. Bytes of messages never lie where a stamp does, so nothing that was
// written in an earlier lap can pass for one.
//
// The reader maps the region read-only: its own progress lies in its own region. Both
// sides treat every word of the other's region as hostile.
#ifndef SLUICE_SHM_RING_H_
#define SLUICE_SHM_RING_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace sluice::shm {

inline constexpr uint32_t kSlotBytes = 128;  // a pair of cache lines: they are fetched together
inline constexpr uint32_t kSlotDataBytes = 120;
// 128 KiB a direction: holds the credits of a connection in small messages.
inline constexpr uint32_t kSlotCount = 1024;

template <template <typename> class Atomic>
struct alignas(kSlotBytes) Slot {
  Atomic<uint64_t> stamp;
  std::byte data[kSlotDataBytes];
};

// What one side owns and the other maps read-only.
template <template <typename> class Atomic>
struct Region {
  alignas(64) uint64_t layout;  // kRegionLayout: version of this struct
  uint64_t probe;               // the owner's incarnation: proves the mapping
  alignas(
      128) Atomic<uint64_t> consumed;  // position up to which the owner has read the other's ring
  alignas(128) Atomic<uint64_t> sleeping;     // odd: the owner sleeps or is about to; grows
  alignas(128) Atomic<uint64_t> withdrawals;  // offers that the owner has withdrawn so far
  alignas(128) Atomic<uint64_t> copying;      // 1 while the owner copies from the other's memory
  alignas(128) Slot<Atomic> slots[kSlotCount];
};
inline constexpr uint64_t kRegionLayout = 0x534c554943455232;  // "SLUICER2"

constexpr uint32_t slots_for(uint64_t bytes) {
  return static_cast<uint32_t>((bytes + kSlotDataBytes - 1) / kSlotDataBytes);
}

template <template <typename> class Atomic>
class RingWriter {
 public:
  // `mine` is our region (written), `theirs` the reader's (its `consumed` is read).
  RingWriter(Region<Atomic>* mine, const Region<Atomic>* theirs) : mine_(mine), theirs_(theirs) {}

  enum class Outcome : uint8_t { kWritten, kFull, kCorrupt };

  // Writes the parts as one message. kCorrupt: the reader's position is impossible.
  // Requires: slots_for(sum of parts) <= kSlotCount; 0 < sum.
  Outcome write(std::span<const std::byte> header,
                std::span<const std::span<const std::byte>> payload) {
    uint64_t total = header.size();
    for (auto part : payload) total += part.size();
    uint32_t count = slots_for(total);
    if (position_ + count - consumed_ > kSlotCount) {
      uint64_t consumed = theirs_->consumed.load(std::memory_order_acquire);
      if (consumed < consumed_ || consumed > position_) return Outcome::kCorrupt;
      consumed_ = consumed;
      if (position_ + count - consumed_ > kSlotCount) return Outcome::kFull;
    }
    uint64_t first = position_;
    position_ += count;
    std::byte* at = data(first);
    if (count == 1 && payload.size() <= 1) [[likely]] {
      copy_words(at, header);
      if (!payload.empty() && !payload[0].empty())
        std::memcpy(at + header.size(), payload[0].data(), payload[0].size());
    } else {
      spread(first, header, payload);
    }
    // seq_cst pairs with the reader's begin_sleep(): it sees this stamp, or we see that
    // it sleeps.
    mine_->slots[first % kSlotCount].stamp.store(first + 1, std::memory_order_seq_cst);
    return Outcome::kWritten;
  }
  // After write(): the number of the reader's sleep (odd) if it sleeps, else 0.
  uint64_t reader_sleep() const {
    uint64_t sleeping = theirs_->sleeping.load(std::memory_order_seq_cst);
    return (sleeping & 1) != 0 ? sleeping : 0;
  }
  // After write(): the reader's sleep that it has to be woken from, or 0. rung() when the bell
  // is on its way: one for each sleep.
  uint64_t bell_due() const {
    uint64_t sleep = reader_sleep();
    return sleep != rung_ ? sleep : 0;
  }
  void rung(uint64_t sleep) { rung_ = sleep; }
  // As the reader says: a hint. Of an impossible position, which a write() refuses, more than there
  // are.
  uint64_t unread_slots() const {
    return position_ - theirs_->consumed.load(std::memory_order_relaxed);
  }

 private:
  // A header was just written in words of 8 bytes (and is a multiple of 8 long): wider
  // loads would wait until all of them have left the store buffer.
  static void copy_words(std::byte* to, std::span<const std::byte> from) {
    for (size_t i = 0; i + 8 <= from.size(); i += 8) std::memcpy(to + i, from.data() + i, 8);
    for (size_t i = from.size() & ~size_t{7}; i < from.size(); ++i) to[i] = from[i];
  }
  // Over as many slots as it takes.
  void spread(uint64_t slot, std::span<const std::byte> header,
              std::span<const std::span<const std::byte>> payload) {
    uint32_t room = kSlotDataBytes;
    std::byte* at = data(slot);
    auto append = [&](std::span<const std::byte> part) {
      while (!part.empty()) {
        if (room == 0) {
          at = data(++slot);
          room = kSlotDataBytes;
        }
        size_t n = std::min<size_t>(room, part.size());
        std::memcpy(at, part.data(), n);
        at += n;
        room -= static_cast<uint32_t>(n);
        part = part.subspan(n);
      }
    };
    append(header);
    for (auto part : payload) append(part);
  }
  std::byte* data(uint64_t slot) { return mine_->slots[slot % kSlotCount].data; }

  Region<Atomic>* mine_;
  const Region<Atomic>* theirs_;
  uint64_t position_ = 0;
  uint64_t consumed_ = 0;  // the reader's position as last seen
  uint64_t rung_ = 0;      // the reader's sleep that a bell was sent for
};

template <template <typename> class Atomic>
class RingReader {
 public:
  // `theirs` is the writer's region, `mine` the reader's own (its `consumed` is written).
  RingReader(Region<Atomic>* mine, const Region<Atomic>* theirs) : mine_(mine), theirs_(theirs) {}

  bool ready() const {
    const Slot<Atomic>& slot = theirs_->slots[position_ % kSlotCount];
    // The message's second line is fetched while its first one is waited for: one trip
    // between the processors, not two in a row.
    __builtin_prefetch(slot.data + 56);
    return slot.stamp.load(std::memory_order_acquire) == position_ + 1;
  }
  bool ready_seq_cst() const {
    return theirs_->slots[position_ % kSlotCount].stamp.load(std::memory_order_seq_cst) ==
           position_ + 1;
  }
  // Copies bytes [offset, offset + out.size()) of the message at the front. The writer
  // can still change them: what is checked must be the copy.
  void copy(uint64_t offset, std::span<std::byte> out) const {
    if (offset + out.size() <= kSlotDataBytes) [[likely]] {
      std::memcpy(out.data(), theirs_->slots[position_ % kSlotCount].data + offset, out.size());
      return;
    }
    uint64_t slot = position_ + offset / kSlotDataBytes;
    size_t skip = offset % kSlotDataBytes;
    while (!out.empty()) {
      size_t n = std::min<size_t>(kSlotDataBytes - skip, out.size());
      std::memcpy(out.data(), theirs_->slots[slot % kSlotCount].data + skip, n);
      out = out.subspan(n);
      skip = 0;
      ++slot;
    }
  }
  // The first kBytes of it, a number known to the compiler.
  template <size_t kBytes>
  void copy_front(std::byte* out) const {
    static_assert(kBytes <= kSlotDataBytes);
    std::memcpy(out, theirs_->slots[position_ % kSlotCount].data, kBytes);
  }
  // Slots read since the beginning.
  uint64_t position() const { return position_; }
  // Ends the message at the front. Requires: count <= kSlotCount.
  void pop(uint32_t count) {
    position_ += count;
    mine_->consumed.store(position_, std::memory_order_release);
  }

  // The owner of this reader is about to sleep. False: a message is there.
  bool begin_sleep() {
    mine_->sleeping.store(++sleeps_ | 1, std::memory_order_seq_cst);
    sleeps_ |= 1;
    return !ready_seq_cst();
  }
  void end_sleep() {
    if ((sleeps_ & 1) == 0) return;
    mine_->sleeping.store(++sleeps_, std::memory_order_relaxed);
  }

 private:
  Region<Atomic>* mine_;
  const Region<Atomic>* theirs_;
  uint64_t position_ = 0;
  uint64_t sleeps_ = 0;
};

// How one side makes the other stop copying from its memory, without a message. The copying side
// sets its mark first, and then looks for a withdrawal. The withdrawing side counts first, and then
// looks for a copy. The four accesses are seq_cst: if both happen at once, one sees the other.
template <template <typename> class Atomic>
class CopyGate {
 public:
  CopyGate(Region<Atomic>* mine, const Region<Atomic>* theirs) : mine_(mine), theirs_(theirs) {}

  // False: the peer has withdrawn other than so many offers: nothing may be copied.
  bool begin_copy(uint64_t withdrawals_seen) {
    mine_->copying.store(1, std::memory_order_seq_cst);
    if (theirs_->withdrawals.load(std::memory_order_seq_cst) == withdrawals_seen) return true;
    mine_->copying.store(0, std::memory_order_release);
    return false;
  }
  // What was read before stays before.
  void end_copy() { mine_->copying.store(0, std::memory_order_release); }
  void count_withdrawals(uint64_t total) {
    mine_->withdrawals.store(total, std::memory_order_seq_cst);
  }
  // Once it is false after count_withdrawals(), begin_copy() at the peer says no.
  bool peer_is_copying() const { return theirs_->copying.load(std::memory_order_seq_cst) != 0; }

 private:
  Region<Atomic>* mine_;
  const Region<Atomic>* theirs_;
};

using SharedRegion = Region<std::atomic>;
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace sluice::shm

#endif  // SLUICE_SHM_RING_H_
