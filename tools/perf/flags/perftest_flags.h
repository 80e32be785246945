// perftest's flags that have no effect here, and those that are refused.
#ifndef SLUICE_TOOLS_PERF_FLAGS_PERFTEST_FLAGS_H_
#define SLUICE_TOOLS_PERF_FLAGS_PERFTEST_FLAGS_H_

#include <CLI/CLI.hpp>

#include "tools/perf/flags/plan.h"

namespace sluice::tools {

// Some are taken and not followed: a line on stderr each, or with --strict the end. Others are
// refused, since without them something else would be measured.
void add_unhonoured_flags(CLI::App& perf, PerfOptions& options);

}  // namespace sluice::tools

#endif  // SLUICE_TOOLS_PERF_FLAGS_PERFTEST_FLAGS_H_
