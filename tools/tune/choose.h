// From measured times to a threshold. No I/O and no clock: figures in, a choice out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::tools {

// Median times of one size, done in either way: as what is below the threshold, or above it.
struct SizeTimes {
  uint64_t bytes = 0;
  double below_ns = 0;
  double above_ns = 0;
};

struct Choice {
  uint64_t bytes = 0;
  double worst =
      1;  // time at the size where the choice costs most, as a multiple of the better way
};

// A threshold out of `candidates`; what has at most `threshold` bytes (with `inclusive`; else
// fewer) is done in the way "below". The least worst cost wins; what is within `indifferent` of
// that is decided for `usual`, so that noise moves nothing. Requires: sizes and candidates not
// empty.
Choice choose_threshold(const std::vector<SizeTimes>& sizes,
                        const std::vector<uint64_t>& candidates, bool inclusive, uint64_t usual,
                        double indifferent = 0.03);

// A size that was done in both ways, one right after the other each time: whatever slows one of a
// pair down slows the other, and their ratio stays.
struct PairedTimes {
  uint64_t bytes = 0;
  std::vector<double> ratios;  // through the caches by past them; more than 1: past them is faster
};

// Fewer pairs than decide anything.
inline constexpr size_t kFewestPairs = 4;

// The reuse distance from which copies go past the caches (docs/tuning.md): the smallest size from
// which on, `in_place`, that is clearly faster at every size; `never` where it is clearly slower at
// a size `elsewhere`, whose destination had left the caches; else `usual`, also where a size has
// fewer than kFewestPairs. Clearly: by 3 % in the middle pair, and by 1 % in three quarters of
// them. Requires: both ascending and not empty.
uint64_t choose_reach(const std::vector<PairedTimes>& in_place,
                      const std::vector<PairedTimes>& elsewhere, uint64_t usual, uint64_t never);

// What one fixed value costs; 0: it was not measured.
struct ValueTime {
  uint64_t value = 0;
  double ns = 0;
};

// The value that takes least; `usual` where it is within `indifferent` of that, or where nothing
// was measured.
uint64_t choose_value(const std::vector<ValueTime>& values, uint64_t usual,
                      double indifferent = 0.03);

// How long to poll before sleeping where waking takes `wake_ns` longer: two and a half times that,
// in steps of 5 us from 10 to 200 us (docs/tuning.md).
uint64_t spin_budget_ns(double wake_ns);

// The time that a quarter of the samples do not exceed: what the machine does when nobody else has
// the processor. 0, which decides nothing, of fewer than 12.
double typical(std::vector<double> samples);

// "1K 0.62, 2K 0.70": below_ns / above_ns of each size.
std::string ratios_text(const std::vector<SizeTimes>& sizes);
// The same of pairs: their medians.
std::string ratios_text(const std::vector<PairedTimes>& sizes);
// "16 1.20, 92 1.00": each value's time by the least. Empty where one of them was not measured.
std::string costs_text(const std::vector<ValueTime>& values);

}  // namespace sluice::tools
