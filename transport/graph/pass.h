// From a graph to a plan. No I/O, no clock; the same graph gives the same plan.
#ifndef SLUICE_GRAPH_PASS_H_
#define SLUICE_GRAPH_PASS_H_

#include <sluice/graph/plan.h>

namespace sluice::graph {

struct PassOptions {
  bool share_memory = true;  // false: each tensor has memory of its own, nothing is in place
  bool ask_ahead = true;     // false: a tensor is asked for when its first reader is next
};

// Cost: nodes times processes, and for each process the square of its slots.
// Errors: as validate(); kNoMemory (a process needs more than its memory_bytes; the text says how
// much), kInvalidArgument (the sizes of a process overflow together).
Result<Plan> make_plan(Graph graph, const PassOptions& options = {});

}  // namespace sluice::graph

#endif  // SLUICE_GRAPH_PASS_H_
