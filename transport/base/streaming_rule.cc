#include <sluice/base/streaming_rule.h>

#include <algorithm>

namespace sluice {

bool StreamingRule::past_caches(const std::byte* to, uint64_t bytes) {
  if (reach_bytes_ == kNever) return false;
  copied_bytes_ += bytes;
  if (bytes < kLeastBytes) return false;
  auto known =
      std::find_if(written_.begin(), written_.end(), [&](const Written& w) { return w.to == to; });
  if (known == written_.end()) {
    written_[oldest_] = {.to = to, .copied_until_then = copied_bytes_};
    oldest_ = (oldest_ + 1) % written_.size();
    return true;
  }
  uint64_t distance = copied_bytes_ - known->copied_until_then;
  known->copied_until_then = copied_bytes_;
  return distance >= reach_bytes_;
}

}  // namespace sluice
