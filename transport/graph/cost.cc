#include <sluice/graph/cost.h>

#include <algorithm>
#include <string>

namespace sluice::graph {
namespace {
// Of a sample. Beyond that the squares of the weights leave the range of a double.
constexpr double kLeastTimeUs = 1e-6, kMostTimeUs = 1e15;  // a picosecond to 30 years
}  // namespace

Result<Line> fit(std::span<const Sample> samples) {
  double w = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const Sample& sample : samples) {
    if (!(sample.time_us >= kLeastTimeUs && sample.time_us <= kMostTimeUs)) {
      return Status(Code::kInvalidArgument, Scope::kOperation, "graph/fit",
                    "a sample has a time of " + std::to_string(sample.time_us) +
                        " us: give what was measured, from 1e-6 to 1e15 us, or leave it out");
    }
    const double weight = 1 / (sample.time_us * sample.time_us);
    const double bytes = static_cast<double>(sample.bytes);
    w += weight;
    x += weight * bytes;
    y += weight * sample.time_us;
    xx += weight * bytes * bytes;
    xy += weight * bytes * sample.time_us;
  }
  if (samples.empty()) {
    return Status(Code::kInvalidArgument, Scope::kOperation, "graph/fit",
                  "there are no samples to fit: give one at least, [bytes, us]");
  }
  const double spread = w * xx - x * x;
  double slope = spread > 1e-9 * w * xx ? (w * xy - x * y) / spread : 0;
  double latency = (y - slope * x) / w;
  if (slope < 0) {
    slope = 0;
    latency = y / w;
  } else if (latency < 0) {
    latency = 0;
    slope = xx > 0 ? xy / xx : 0;
  }
  return Line{latency, slope > 0 ? 1 / slope : 0};
}

Costs usual_costs() {
  Costs costs;
  costs.view = {25, 0};
  costs.cross = {60, 2'000};
  costs.memory = {0, 5'000};
  costs.node_us = 1;
  costs.cores = 2;
  return costs;
}

}  // namespace sluice::graph
