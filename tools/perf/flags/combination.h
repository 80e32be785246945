// What flags of `sluice perf` mean together.
#ifndef SLUICE_TOOLS_PERF_FLAGS_COMBINATION_H_
#define SLUICE_TOOLS_PERF_FLAGS_COMBINATION_H_

#include "tools/perf/flags/plan.h"

namespace sluice::tools {

// What single flags cannot see, and defaults that depend on others. Throws CLI::ParseError, which
// names flag, value and an example.
void check_combination(PerfOptions& o);

}  // namespace sluice::tools

#endif  // SLUICE_TOOLS_PERF_FLAGS_COMBINATION_H_
