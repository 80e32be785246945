// perftest's text, to the letter (version 4.5, checked beside it over soft-RoCE). What
// sluice does not know (LIDs, queue pair numbers, the MTU) is 0; so is the peak bandwidth,
// as with perftest's -N and -D.
#pragma once

#include <string>

#include "tools/perf/run/run.h"

namespace sluice::tools {

// "RDMA_Write BW Test".
std::string perftest_title(const PerfOptions& options);
// Banner and column heads; nothing where one number only was asked for, as with perftest's
// --output.
void perftest_header(const PerfOptions& options, const EndpointInfo& link);
void perftest_row(const PerfOptions& options, const Measurement& measurement);
void perftest_footer(const PerfOptions& options);

}  // namespace sluice::tools
