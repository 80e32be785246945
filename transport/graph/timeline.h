// Who is sure to have run before whom, within one step. Of the pass; not for programs.
#ifndef SLUICE_GRAPH_TIMELINE_H_
#define SLUICE_GRAPH_TIMELINE_H_

#include <cstdint>
#include <vector>

#include <sluice/graph/graph.h>

namespace sluice::graph {

// Each process runs its nodes in one order, in each step. A node knows of another process the nodes
// up to a position: those whose results, or what was made of them, it has waited for.
class Timeline {
 public:
  // Requires: a valid graph.
  explicit Timeline(const Graph& graph);
  const std::vector<uint32_t>& order(uint32_t process) const { return orders_[process]; }
  uint32_t position(uint32_t node) const { return positions_[node]; }
  // `earlier` has ended in each step in which `later` begins.
  bool ends_before(uint32_t earlier, uint32_t later) const;

 private:
  const Graph& graph_;
  std::vector<std::vector<uint32_t>> orders_;
  std::vector<uint32_t> positions_;
  // By node, then process: how many of that process's nodes have ended before it begins.
  std::vector<uint32_t> ended_;
};

}  // namespace sluice::graph

#endif  // SLUICE_GRAPH_TIMELINE_H_
