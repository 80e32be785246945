// The two kinds of process of the demo job. Each runs in a process of its own, forked
// before any context or gRPC object exists.
#ifndef SLUICE_TOOLS_DEMO_JOB_ROLES_H_
#define SLUICE_TOOLS_DEMO_JOB_ROLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/demo_job/control.h"
#include "tools/demo_job/job.h"

namespace sluice::tools::demo {

// Both return the process's exit code; a failure has been told over `line`.
int serve(const Visit& visit, uint32_t server, ControlLine line);

struct WorkerPlace {
  uint32_t index = 0;
  int64_t first_step = 0;              // later than 0 for a worker that was restarted
  std::vector<std::string> addresses;  // of all servers, in their order
};
int work(const Visit& visit, const WorkerPlace& place, ControlLine line);

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_ROLES_H_
