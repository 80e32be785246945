// What a list of samples says. All samples are kept and all figures computed in
// double: nothing is binned and no tail is cut off.
#pragma once

#include <cstddef>
#include <vector>

namespace sluice::tools {

struct Distribution {
  size_t count = 0;
  double min = 0, p50 = 0, p99 = 0, p99_9 = 0, max = 0;
  double mean = 0;
  double stdev = 0;  // of the sample (n - 1); 0 for a single one
};

// Percentiles are nearest-rank: the smallest sample that at least so many per cent of
// the samples do not exceed; each is a value that was measured. Reorders `samples`.
Distribution summarize(std::vector<double>& samples);

}  // namespace sluice::tools
