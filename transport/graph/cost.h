// What a step costs, by a latency and a rate for each way that a tensor can take. Pure.
#ifndef SLUICE_GRAPH_COST_H_
#define SLUICE_GRAPH_COST_H_

#include <array>
#include <cstdint>
#include <span>

#include <sluice/base/result.h>
#include <sluice/graph/plan.h>

namespace sluice::graph {

// Time of `bytes`: latency_us + bytes / bytes_per_us.
struct Line {
  double latency_us = 0;
  double bytes_per_us = 0;  // 0: the size does not matter
  double time_us(uint64_t bytes) const {
    return latency_us + (bytes_per_us > 0 ? static_cast<double>(bytes) / bytes_per_us : 0);
  }
};

struct Sample {
  uint64_t bytes = 0;
  double time_us = 0;
};

// The line through the samples whose largest relative error is counted least: each square is
// weighted by 1/time^2, so that small sizes count as much as large ones. Neither part is negative.
// Errors: kInvalidArgument (no samples, times that are not from 1e-6 to 1e15 us).
Result<Line> fit(std::span<const Sample> samples);

struct Costs {
  Line view;                    // from a publication to the view at the reader
  Line cross;                   // the same, for bytes that are moved
  Line memory;                  // bytes that a node's processor reads and writes
  double node_us = 0;           // of each node, whatever it does
  uint32_t cores = 1;           // of each host
  double nic_bytes_per_us = 0;  // of each host, in each direction; 0: as cross
};

// Round figures of the size that two virtual processors with loopback have: not measured. For an
// estimate that is held against a machine, give that machine's own (docs/graph.md).
Costs usual_costs();

// What one run in virtual time found.
struct Estimate {
  double step_us = 0;        // of a step in the steady state
  double first_step_us = 0;  // with everything that is asked for anew
  double moved_bytes = 0;    // a step, between hosts
  double busiest_nic = 0;    // share of the step, 0 to 1
  double busiest_host = 0;   // share of its cores' time, 0 to 1
};

// Carries a plan out under these costs, for `steps` steps (2 at least): each process runs its
// instructions in order, a host runs as many nodes at once as it has cores, and its NIC sends one
// tensor and receives one tensor at a time, in the order in which they are ready; between them is
// a switch with room for everything.
// Requires: problem_of(plan) is empty. Errors: kInvalidArgument (steps, a plan that does not end).
Result<Estimate> estimate(const Plan& plan, const Costs& costs, uint32_t steps = 4);

}  // namespace sluice::graph

#endif  // SLUICE_GRAPH_COST_H_
