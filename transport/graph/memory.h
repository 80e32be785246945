// Lifetimes of the tensors of one process, and slots for them. Of the pass; not for programs.
#ifndef SLUICE_GRAPH_MEMORY_H_
#define SLUICE_GRAPH_MEMORY_H_

#include <cstdint>
#include <utility>
#include <vector>

#include <sluice/graph/pass.h>
#include <sluice/graph/plan.h>
#include <sluice/graph/timeline.h>

namespace sluice::graph {

// Memory that one tensor has after the other, each written over the last one; or the destination of
// a delivery. Times are positions in the order of its process, counted on over the steps from the
// step in which it is first written.
struct Storage {
  uint64_t bytes = 0;
  Audience audience = Audience::kNobody;
  uint64_t begin = 0;
  uint64_t end = 0;       // the last time at which somebody may read it
  uint32_t versions = 1;  // that exist at once
  bool alone = false;     // in use at all times
  // Edges, with the number of steps from its first writing to the step that reads it.
  std::vector<std::pair<uint32_t, uint32_t>> tensors;
  uint32_t delivery = kNone;
};

// Decides what is written in place, and adds slots of that process to the plan.
// Requires: plan.graph, plan.tensors (empty ones), plan.deliveries are there.
// Errors: kInvalidArgument (sizes overflow together).
class MemoryPlanner {
 public:
  MemoryPlanner(Plan& plan, const Timeline& timeline, const PassOptions& options);
  Status plan_process(uint32_t process);

 private:
  void decide_in_place(uint32_t process);
  bool may_overwrite(uint32_t node, uint32_t input, uint32_t output) const;
  uint64_t last_use(uint32_t edge, uint32_t steps) const;
  std::vector<Storage> storages_of(uint32_t process);
  Storage chain_from(uint32_t root);
  Storage destination(uint32_t delivery) const;
  Status assign(uint32_t process, const std::vector<Storage>& storages);

  Plan& plan_;
  const Timeline& timeline_;
  const PassOptions& options_;
  std::vector<std::vector<uint32_t>> inputs_, outputs_;  // edges by node
  std::vector<std::vector<uint32_t>> made_in_;           // edges by process
  std::vector<std::vector<uint32_t>> deliveries_of_;     // by edge
  std::vector<std::vector<uint32_t>> deliveries_to_;     // by process
  std::vector<uint32_t> overwritten_by_;                 // by edge
};

}  // namespace sluice::graph

#endif  // SLUICE_GRAPH_MEMORY_H_
