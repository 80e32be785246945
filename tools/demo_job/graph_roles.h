// Mode graph: the job's dataflow graph, planned by the pass and run by its runner. Beside server.cc
// and worker.cc, which do the same by hand.
#ifndef SLUICE_TOOLS_DEMO_JOB_GRAPH_ROLES_H_
#define SLUICE_TOOLS_DEMO_JOB_GRAPH_ROLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include <sluice/base/result.h>
#include <sluice/graph/plan.h>

#include "tools/demo_job/control.h"
#include "tools/demo_job/job.h"
#include "tools/demo_job/model.h"

namespace sluice::tools::demo {

// The plan that every process of a visit makes for itself: servers first, then workers. Processes
// share a host on path shm alone.
// Errors: as make_plan(); kInternal (the checker refuses the plan).
Result<graph::Plan> plan_of(const Visit& visit, const Model& model);

Status serve_graph(const Visit& visit, uint32_t server, ControlLine& line);
Status work_graph(const Visit& visit, uint32_t worker, const std::vector<std::string>& addresses,
                  ControlLine& line);

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_GRAPH_ROLES_H_
