// A one-way queue of control messages in shared memory: one writer, one reader, no
// lock. Knows memory and atomics only; who maps it and who is woken is the link's matter.
//
// Slots of 128 bytes, each with a stamp of 8. A message lies in consecutive slots, 120
// bytes in each. Position p (slots written since the beginning) carries stamp p + 1 in
// the message's first slot: published last, with release, so that a reader which sees it
// sees all slots. Bytes of messages never lie where a stamp does, so nothing that was
// written in an earlier lap can pass for one.
//
// A region has two places for slots. The first is small: it is all that an idle connection has of
// memory. If it is full, the writer populates the second and goes on there for good; the last slot
// of the first says so. The reader asks for that only where a slot holds no message.
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
// With the words before them 8 KiB: all that an idle connection needs. Holds an eager message of
// Tuning::shm_eager_bytes, 4 KiB.
inline constexpr uint32_t kFirstSlots = 58;
// 128 KiB a direction: holds the credits of a connection in small messages.
inline constexpr uint32_t kSlotCount = 1024;

template <template <typename> class Atomic>
struct alignas(kSlotBytes) Slot {
  Atomic<uint64_t> stamp;
  std::byte data[kSlotDataBytes];
};

// What one side owns and the other maps read-only. As it begins: zero bytes. (The numbers of slots
// are arguments for a checker, which cannot look at a thousand.)
template <template <typename> class Atomic, uint32_t kFirst = kFirstSlots,
          uint32_t kGrown = kSlotCount>
struct Region {
  alignas(64) uint64_t layout;  // kRegionLayout: version of this struct
  uint64_t probe;               // the owner's incarnation: proves the mapping
  Atomic<uint64_t> grown_at;    // stamp of the slot that ends the first place; 0: not yet
  alignas(
      128) Atomic<uint64_t> consumed;  // position up to which the owner has read the other's ring
  alignas(128) Atomic<uint64_t> sleeping;     // odd: the owner sleeps or is about to; grows
  alignas(128) Atomic<uint64_t> withdrawals;  // offers that the owner has withdrawn so far
  alignas(128) Atomic<uint64_t> copying;      // 1 while the owner copies from the other's memory
  alignas(128) Slot<Atomic> first[kFirst];
  alignas(4096) Slot<Atomic> grown[kGrown];  // has memory only once the owner has grown
};
inline constexpr uint64_t kRegionLayout = 0x534c554943455233;  // "SLUICER3"

constexpr uint32_t slots_for(uint64_t bytes) {
  return static_cast<uint32_t>((bytes + kSlotDataBytes - 1) / kSlotDataBytes);
}

template <template <typename> class Atomic, uint32_t kFirst = kFirstSlots,
          uint32_t kGrown = kSlotCount>
class RingWriter {
 public:
  using RegionOf = Region<Atomic, kFirst, kGrown>;
  // `mine` is our region (written), `theirs` the reader's (its `consumed` is read).
  RingWriter(RegionOf* mine, const RegionOf* theirs)
      : mine_(mine), theirs_(theirs), ring_(mine->first) {}

  enum class Outcome : uint8_t { kWritten, kFull, kCorrupt };

  // Writes the parts as one message. kFull: also of a message that only a grown ring can hold.
  // kCorrupt: the reader's position is impossible.
  // Requires: slots_for(sum of parts) <= kGrown; 0 < sum.
  Outcome write(std::span<const std::byte> header,
                std::span<const std::span<const std::byte>> payload) {
    uint64_t total = header.size();
    for (auto part : payload) total += part.size();
    uint32_t count = slots_for(total);
    if (Outcome room = look_for_room(count); room != Outcome::kWritten) return room;
    Slot<Atomic>& first = ring_[next_];
    if (count == 1 && payload.size() <= 1) [[likely]] {
      copy_words(first.data, header);
      if (!payload.empty() && !payload[0].empty())
        std::memcpy(first.data + header.size(), payload[0].data(), payload[0].size());
    } else {
      spread(header, payload);
    }
    publish(first, count);
    return Outcome::kWritten;
  }
  // The same of one part, of a length that the compiler knows and that fits a slot: a few
  // instructions, where any message takes a hundred.
  template <size_t kBytes>
  Outcome write_words(const std::byte* message) {
    static_assert(kBytes <= kSlotDataBytes && kBytes % 8 == 0);
    if (Outcome room = look_for_room(1); room != Outcome::kWritten) return room;
    Slot<Atomic>& slot = ring_[next_];
    for (size_t i = 0; i < kBytes; i += 8) std::memcpy(slot.data + i, message + i, 8);
    publish(slot, 1);
    return Outcome::kWritten;
  }
  // Goes on in the larger place. Requires: !grown(), and Region::grown has its memory.
  void grow() {
    Slot<Atomic>& mark = ring_[next_];  // of the first place one slot is kept free for it
    std::memset(mark.data, 0xFF, kSlotDataBytes);                     // no message
    mine_->grown_at.store(position_ + 1, std::memory_order_relaxed);  // before the stamp
    publish(mark, 1);
    ring_ = mine_->grown;
    next_ = 0;
    slots_ = room_ = kGrown;
  }
  bool grown() const { return room_ == kGrown; }
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
  // kWritten: there is room for so many slots.
  Outcome look_for_room(uint32_t count) {
    if (position_ + count - consumed_ <= room_) [[likely]]
      return Outcome::kWritten;
    uint64_t consumed = theirs_->consumed.load(std::memory_order_acquire);
    if (consumed < consumed_ || consumed > position_) return Outcome::kCorrupt;
    consumed_ = consumed;
    return position_ + count - consumed_ <= room_ ? Outcome::kWritten : Outcome::kFull;
  }
  // A header was just written in words of 8 bytes (and is a multiple of 8 long): wider
  // loads would wait until all of them have left the store buffer.
  static void copy_words(std::byte* to, std::span<const std::byte> from) {
    size_t i = 0;
    for (; i + 24 <= from.size(); i += 24) {  // usual headers have 24, 48, 72 or 96 bytes
      std::memcpy(to + i, from.data() + i, 8);
      std::memcpy(to + i + 8, from.data() + i + 8, 8);
      std::memcpy(to + i + 16, from.data() + i + 16, 8);
    }
    for (; i + 8 <= from.size(); i += 8) std::memcpy(to + i, from.data() + i, 8);
    for (; i < from.size(); ++i) to[i] = from[i];
  }
  // The message of so many slots that begins in `first` is there.
  void publish(Slot<Atomic>& first, uint32_t count) {
    const uint64_t stamp = position_ + 1;
    position_ += count;
    next_ += count;
    if (next_ >= slots_) next_ -= slots_;
    // seq_cst pairs with the reader's begin_sleep(): it sees this stamp, or we see that
    // it sleeps.
    first.stamp.store(stamp, std::memory_order_seq_cst);
  }
  // Over as many slots as it takes.
  void spread(std::span<const std::byte> header,
              std::span<const std::span<const std::byte>> payload) {
    uint32_t slot = next_;
    uint32_t room = kSlotDataBytes;
    std::byte* at = ring_[slot].data;
    auto append = [&](std::span<const std::byte> part) {
      while (!part.empty()) {
        if (room == 0) {
          if (++slot == slots_) slot = 0;
          at = ring_[slot].data;
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

  RegionOf* mine_;
  const RegionOf* theirs_;
  Slot<Atomic>* ring_;          // the place that is written now
  uint32_t next_ = 0;           // in it
  uint32_t slots_ = kFirst;     // of it
  uint32_t room_ = kFirst - 1;  // of it, for messages
  uint64_t position_ = 0;
  uint64_t consumed_ = 0;  // the reader's position as last seen
  uint64_t rung_ = 0;      // the reader's sleep that a bell was sent for
};

template <template <typename> class Atomic, uint32_t kFirst = kFirstSlots,
          uint32_t kGrown = kSlotCount>
class RingReader {
 public:
  using RegionOf = Region<Atomic, kFirst, kGrown>;
  // `theirs` is the writer's region, `mine` the reader's own (its `consumed` is written).
  RingReader(RegionOf* mine, const RegionOf* theirs)
      : mine_(mine), theirs_(theirs), ring_(theirs->first), front_(ring_) {}

  bool ready() const {
    // The message's second line is fetched while its first one is waited for: one trip
    // between the processors, not two in a row.
    __builtin_prefetch(front_->data + 56);
    return front_->stamp.load(std::memory_order_acquire) == position_ + 1;
  }
  bool ready_seq_cst() const {
    return front_->stamp.load(std::memory_order_seq_cst) == position_ + 1;
  }
  // What is at the front is no message: the writer goes on in the larger place. Requires: ready().
  bool at_growth() const {
    return slots_ != kGrown &&
           theirs_->grown_at.load(std::memory_order_relaxed) == position_ + 1;  // behind the stamp
  }
  // Reads there from now on. Requires: at_growth().
  void follow_growth() {
    ring_ = front_ = theirs_->grown;
    next_ = 0;
    slots_ = kGrown;
    mine_->consumed.store(++position_, std::memory_order_release);
  }
  // Slots that a message can have at most, as far as the writer has grown.
  uint32_t most_slots() const { return slots_; }
  // Copies bytes [offset, offset + out.size()) of the message at the front. The writer
  // can still change them: what is checked must be the copy.
  void copy(uint64_t offset, std::span<std::byte> out) const {
    if (offset + out.size() <= kSlotDataBytes) [[likely]] {
      std::memcpy(out.data(), front_->data + offset, out.size());
      return;
    }
    uint64_t slot = next_ + offset / kSlotDataBytes;
    size_t skip = offset % kSlotDataBytes;
    while (!out.empty()) {
      size_t n = std::min<size_t>(kSlotDataBytes - skip, out.size());
      // A message may say that it is longer than the ring.
      std::memcpy(out.data(), ring_[slot % slots_].data + skip, n);
      out = out.subspan(n);
      skip = 0;
      ++slot;
    }
  }
  // The first kBytes of it, a number known to the compiler.
  template <size_t kBytes>
  void copy_front(std::byte* out) const {
    static_assert(kBytes <= kSlotDataBytes);
    std::memcpy(out, front_->data, kBytes);
  }
  // Slots read since the beginning.
  uint64_t position() const { return position_; }
  // Ends the message at the front.
  void pop(uint32_t count) {
    position_ += count;
    next_ += count;
    if (next_ >= slots_) next_ %= slots_;  // also of a count that cannot be
    front_ = ring_ + next_;
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
  RegionOf* mine_;
  const RegionOf* theirs_;
  const Slot<Atomic>* ring_;   // the place that is read now
  const Slot<Atomic>* front_;  // in it
  uint32_t next_ = 0;          // its number there
  uint32_t slots_ = kFirst;
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
// What has memory from the beginning.
inline constexpr size_t kFirstBytes = 8192;
static_assert(offsetof(SharedRegion, grown) == kFirstBytes);
static_assert(sizeof(SharedRegion) == kFirstBytes + size_t{kSlotBytes} * kSlotCount);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace sluice::shm

#endif  // SLUICE_SHM_RING_H_
