// The whole job: rounds of visits, then the report.
#ifndef SLUICE_TOOLS_DEMO_JOB_RUN_H_
#define SLUICE_TOOLS_DEMO_JOB_RUN_H_

#include "tools/demo_job/job.h"

namespace sluice::tools::demo {

// Exit codes of the command.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitCorrupt = 4;
inline constexpr int kExitNothingToRunOn = 77;

// Prints the table on stdout. Requires: no threads and no contexts in this process.
int run_job(const JobOptions& options);

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_RUN_H_
