// Starts a visit's servers and workers, gives the orders of its steps, restarts a worker
// that was killed, and leaves no process behind. Creates no context, thread or gRPC
// object itself, so that it may fork at any time.
#ifndef SLUICE_TOOLS_DEMO_JOB_COORDINATOR_H_
#define SLUICE_TOOLS_DEMO_JOB_COORDINATOR_H_

#include <functional>

#include "tools/demo_job/job.h"

namespace sluice::tools::demo {

// Calls `on_step()` after each measured step. Blocks: until the visit is over; each step
// within visit.timeout.
VisitOutcome run_visit(const Visit& visit, const std::function<void()>& on_step);

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_COORDINATOR_H_
