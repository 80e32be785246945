// `sluice perf all`: the tests that a path has, and of the flags that were given those that each
// has. Knows no command line.
#pragma once

#include <vector>

#include "tools/perf/flags/plan.h"

namespace sluice::tools {

// As parsed, one for each test, in their order; those of one process last. What only some tests can
// be told is told to these alone. Where the path is not known yet (auto, to a host), atomics are
// among them.
std::vector<PerfOptions> all_tests(const PerfOptions& options);

}  // namespace sluice::tools
