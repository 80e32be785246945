// Under which conditions messages are sent, beside what they are: buffers that are not aligned or
// in no cache, and a sender that does something else in between.
#pragma once

#include <cstdint>
#include <optional>

#include <sluice/allocator/arena.h>
#include <sluice/base/clock.h>

namespace sluice::tools {

// What an offset is from: the beginning of a page.
inline constexpr uint64_t kPageBytes = 4096;

// `bytes` whose address is `offset` past a multiple of kPageBytes; nothing: where the arena has
// room. Errors: as Arena::allocate().
Result<Buffer> allocate_at(Arena& arena, uint64_t bytes, std::optional<uint32_t> offset);

// Whether evict() can do anything on this machine.
bool can_evict();
// Takes all of it out of every cache of this machine; the content stays. Blocks: for some ns a
// line. Returns the bytes of the lines that it named.
uint64_t evict(const std::byte* data, uint64_t bytes);

// Times between nothing and a bound, evenly spread; the same for the same seed.
class Pauses {
 public:
  Pauses(uint64_t most_ns, uint64_t seed) : most_ns_(most_ns), seed_(seed) {}

  // The next one.
  uint64_t next_ns();
  // Computes for that long: nothing is progressed meanwhile.
  void pause();
  uint64_t paused_ns() const { return paused_ns_; }
  explicit operator bool() const { return most_ns_ > 0; }

 private:
  uint64_t most_ns_, seed_;
  uint64_t drawn_ = 0, paused_ns_ = 0;
};

}  // namespace sluice::tools
