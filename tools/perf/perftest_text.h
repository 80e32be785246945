// perftest's text, to the letter (version 4.5, checked beside it over soft-RoCE). What
// sluice does not know (LIDs, queue pair numbers, the MTU) is 0; so is the peak bandwidth,
// as with perftest's -N and -D.
#pragma once

#include "tools/perf/run.h"

namespace sluice::tools {

// Banner and column heads.
void perftest_header(const PerfOptions& options, const EndpointInfo& link);
void perftest_row(const PerfOptions& options, const Measurement& measurement);
void perftest_footer();

}  // namespace sluice::tools
