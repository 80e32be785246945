#include <sluice/graph/timeline.h>

#include <algorithm>

namespace sluice::graph {

Timeline::Timeline(const Graph& graph)
    : graph_(graph),
      orders_(graph.processes.size()),
      positions_(graph.nodes.size()),
      ended_(graph.nodes.size() * graph.processes.size()) {
  const size_t width = graph.processes.size();
  std::vector<std::vector<uint32_t>> outputs(graph.nodes.size());
  for (uint32_t e = 0; e < graph.edges.size(); ++e) {
    if (graph.edges[e].delay == 0) outputs[graph.edges[e].from].push_back(e);
  }
  std::vector<uint32_t> after(width);
  for (uint32_t node : order_of(graph)) {
    const uint32_t process = graph.nodes[node].process;
    uint32_t* own = &ended_[node * width];
    if (!orders_[process].empty()) {
      const uint32_t* last = &ended_[orders_[process].back() * width];
      for (size_t p = 0; p < width; ++p) own[p] = std::max(own[p], last[p]);
    }
    positions_[node] = static_cast<uint32_t>(orders_[process].size());
    orders_[process].push_back(node);
    own[process] = positions_[node];
    std::copy(own, own + width, after.begin());
    after[process] = positions_[node] + 1;
    for (uint32_t e : outputs[node]) {
      for (uint32_t reader : graph.edges[e].to) {
        uint32_t* known = &ended_[reader * width];
        for (size_t p = 0; p < width; ++p) known[p] = std::max(known[p], after[p]);
      }
    }
  }
}

bool Timeline::ends_before(uint32_t earlier, uint32_t later) const {
  const uint32_t process = graph_.nodes[earlier].process;
  return ended_[later * graph_.processes.size() + process] > positions_[earlier];
}

}  // namespace sluice::graph
