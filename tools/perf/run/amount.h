// How many iterations a run has, and each of its rounds.
#ifndef SLUICE_TOOLS_PERF_RUN_AMOUNT_H_
#define SLUICE_TOOLS_PERF_RUN_AMOUNT_H_

#include <cstdint>

#include "tools/perf/flags/plan.h"

namespace sluice::tools {

// Samples of one size that are kept at most: 512 MiB of them.
inline constexpr uint64_t kMostSamples = uint64_t{1} << 26;

// Without -n and -D: enough for the percentiles, and no more than about a GiB.
uint64_t default_iterations(const Load& load);
// Those that are compared before the clock starts.
uint64_t check_iterations(const Load& load);
// Of one round, where so many seconds are left and an iteration takes so many.
uint64_t round_length(double seconds_left, double per_iteration);

}  // namespace sluice::tools

#endif  // SLUICE_TOOLS_PERF_RUN_AMOUNT_H_
