// Cycle-counter readings of one run, in memory that is there before the clock starts.
#pragma once

#include <cstdint>
#include <vector>

#include <sluice/base/clock.h>

namespace sluice::tools {

class Samples {
 public:
  // Room for `count` more; touched, so that no page fault falls into a sample.
  void make_room(uint64_t count) { values_.resize(size_ + count); }
  // Requires: room.
  void add(uint64_t ticks) { values_[size_++] = ticks; }
  uint64_t size() const { return size_; }
  uint64_t operator[](uint64_t i) const { return values_[i]; }

  // In nanoseconds, each times `share` (one half turns round trips into one way).
  std::vector<double> nanoseconds(double share) const {
    double factor = nanoseconds_per_tick() * share;
    std::vector<double> out;
    out.reserve(size_);
    for (uint64_t i = 0; i < size_; ++i) out.push_back(static_cast<double>(values_[i]) * factor);
    return out;
  }

 private:
  std::vector<uint64_t> values_;
  uint64_t size_ = 0;
};

// Time from one lap to the next, with one reading of the counter for each.
class Laps {
 public:
  // A null `samples` takes no time.
  explicit Laps(Samples* samples) : samples_(samples) {}
  // Also after what is no part of the next lap.
  void start() {
    if (samples_ != nullptr) last_ = ticks();
  }
  void lap() {
    if (samples_ == nullptr) return;
    uint64_t now = ticks();
    samples_->add(now - last_);
    last_ = now;
  }

 private:
  Samples* samples_;
  uint64_t last_ = 0;
};

}  // namespace sluice::tools
