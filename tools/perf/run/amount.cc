#include "tools/perf/run/amount.h"

#include <algorithm>

namespace sluice::tools {
namespace {

// Bytes written and compared before the clock starts.
constexpr uint64_t kCheckBytes = uint64_t{256} << 20;
// Length of one round when the time is given, not the number.
constexpr double kRoundSeconds = 0.25;

}  // namespace

uint64_t default_iterations(const Load& load) {
  return std::clamp<uint64_t>((uint64_t{1} << 30) / std::max<uint64_t>(bytes_of_operation(load), 1),
                              10, 10'000);
}

uint64_t check_iterations(const Load& load) {
  if (load.test->verb == Verb::kExchange)
    return load.tensors;  // all: the checks touch every page, too
  if (!load.test->latency) return uint64_t{load.depth} * load.qps;
  return std::clamp<uint64_t>(kCheckBytes / std::max<uint64_t>(bytes_of_operation(load), 1), 1, 64);
}

uint64_t round_length(double seconds_left, double per_iteration) {
  if (per_iteration <= 0) return 10;
  double count = std::min(seconds_left, kRoundSeconds) / per_iteration;
  return std::clamp<uint64_t>(static_cast<uint64_t>(count), 1, kMostSamples / 64);
}

}  // namespace sluice::tools
