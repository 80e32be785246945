// What a list of samples says. All samples are kept and all figures computed in
// double: no tail is cut off, and only a histogram bins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::tools {

struct Distribution {
  size_t count = 0;
  double min = 0, p50 = 0, p99 = 0, p99_9 = 0, max = 0;
  double mean = 0;
  double stdev = 0;  // of the sample (n - 1); 0 for a single one
};

// The exact rank of a percentile: 99.9 per cent of 1000 samples are 999 of them, which binary
// fractions would miss.
struct Rank {
  static constexpr uint64_t kWhole = 100'000'000;  // 100 per cent, to six decimals
  uint64_t parts = 0;
  std::string text;  // "99.9"

  // As a part of a name: "p99_9".
  std::string name() const;
};
// Above 0 and up to 100, six decimals at most.
std::optional<Rank> parse_rank(std::string_view text);

// Percentiles are nearest-rank: the smallest sample that at least so many per cent of
// the samples do not exceed; each is a value that was measured. Reorders `samples`.
Distribution summarize(std::vector<double>& samples);
// Requires: sorted, not empty.
double percentile(const std::vector<double>& sorted, const Rank& rank);

// Samples from `from` up to, not including, `to`.
struct Bin {
  double from = 0, to = 0;
  size_t count = 0;
};
// Four bins to a doubling, those with samples only; every sample is in one. Requires: sorted.
std::vector<Bin> histogram(const std::vector<double>& sorted);

}  // namespace sluice::tools
