// Which copies go past the caches: those whose destination has left them. No I/O, no clock.
#ifndef SLUICE_BASE_STREAMING_RULE_H_
#define SLUICE_BASE_STREAMING_RULE_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice {

// A destination that was written a little while ago is still in a cache, and a plain copy is the
// faster one; what was written long ago, or never, is fetched from memory only to be overwritten.
// "Long ago" is counted in bytes copied since (the reuse distance), so that one small buffer in
// turn and a model of many tensors are told apart at the same size. Thread: one.
class StreamingRule {
 public:
  static constexpr uint64_t kNever = UINT64_MAX;
  // Below this a copy stays in a cache of any processor.
  static constexpr uint64_t kLeastBytes = 256 << 10;

  // `reach`: bytes of copies after which a destination is no longer in the caches. kNever: no copy
  // goes past them.
  explicit StreamingRule(uint64_t reach_bytes) : reach_bytes_(reach_bytes) {}

  // Of a copy that is about to be made, all of it: whether it goes past the caches. Remembers it.
  // Cost: some tens of ns from kLeastBytes on, almost nothing below.
  bool past_caches(const std::byte* to, uint64_t bytes);

 private:
  struct Written {
    const std::byte* to = nullptr;
    uint64_t copied_until_then = 0;
  };

  uint64_t reach_bytes_;
  uint64_t copied_bytes_ = 0;
  // The last ones. With kLeastBytes each they are 16 MiB: what has been driven out of here was long
  // ago.
  std::array<Written, 64> written_{};
  size_t oldest_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_BASE_STREAMING_RULE_H_
