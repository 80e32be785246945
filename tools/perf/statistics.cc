#include "tools/perf/statistics.h"

#include <algorithm>
#include <cmath>

namespace sluice::tools {
namespace {

// Requires: sorted, not empty. `per_mille` of 500 is the median.
double nearest_rank(const std::vector<double>& sorted, size_t per_mille) {
  size_t rank = (sorted.size() * per_mille + 999) / 1000;  // rounded up, from 1
  return sorted[std::max<size_t>(rank, 1) - 1];
}

}  // namespace

Distribution summarize(std::vector<double>& samples) {
  Distribution d;
  d.count = samples.size();
  if (samples.empty()) return d;
  std::sort(samples.begin(), samples.end());
  d.min = samples.front();
  d.max = samples.back();
  d.p50 = nearest_rank(samples, 500);
  d.p99 = nearest_rank(samples, 990);
  d.p99_9 = nearest_rank(samples, 999);
  double sum = 0;
  for (double sample : samples) sum += sample;
  d.mean = sum / static_cast<double>(samples.size());
  // Around the mean, in a second pass: the sum of squares alone would cancel.
  double squares = 0;
  for (double sample : samples) squares += (sample - d.mean) * (sample - d.mean);
  if (samples.size() > 1) d.stdev = std::sqrt(squares / static_cast<double>(samples.size() - 1));
  return d;
}

}  // namespace sluice::tools
