// Which copies go past the caches: those whose destination has left them. No I/O, no clock.
#ifndef SLUICE_BASE_STREAMING_RULE_H_
#define SLUICE_BASE_STREAMING_RULE_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice {

// If a destination was written a short time ago, it is still in a cache, and a plain copy is
// faster. If it was written long ago, or never, a plain copy fetches it from memory only to
// overwrite it. "Long ago" is counted in bytes copied since (the reuse distance). So one small
// buffer again and again, and a model of many tensors, differ at the same size. Thread: one.
class StreamingRule {
 public:
  static constexpr uint64_t kNever = UINT64_MAX;
  // Below this a copy stays in a cache of any processor.
  static constexpr uint64_t kLeastBytes = 256 << 10;

  // `reach`: bytes of copies after which a destination is no longer in the caches. kNever: no copy
  // goes past them.
  explicit StreamingRule(uint64_t reach_bytes) : reach_bytes_(reach_bytes) {}

  // Whether a copy that is about to be made, all of it, goes past the caches. Remembers the copy.
  // Cost: some tens of ns from kLeastBytes on, almost nothing below.
  bool past_caches(const std::byte* to, uint64_t bytes);

 private:
  struct Written {
    const std::byte* to = nullptr;
    uint64_t copied_until_then = 0;
  };

  uint64_t reach_bytes_;
  uint64_t copied_bytes_ = 0;
  // The last destinations. With kLeastBytes each they are 32 MiB, so a destination that is no
  // longer here was written long ago.
  std::array<Written, 128> written_{};
  size_t oldest_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_BASE_STREAMING_RULE_H_
