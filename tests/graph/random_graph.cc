#include "tests/graph/random_graph.h"

#include <algorithm>
#include <vector>

namespace sluice::graph::test {
namespace {

uint32_t below(std::mt19937_64& random, size_t bound) {
  return static_cast<uint32_t>(random() % bound);
}

// Removes one instruction of that action from the step of some process.
std::string remove(Plan& plan, Action action, std::mt19937_64& random) {
  std::vector<std::pair<size_t, size_t>> found;
  for (size_t p = 0; p < plan.processes.size(); ++p) {
    for (size_t i = 0; i < plan.processes[p].step.size(); ++i) {
      if (plan.processes[p].step[i].action == action) found.emplace_back(p, i);
    }
  }
  if (found.empty()) return {};
  const auto [p, i] = found[below(random, found.size())];
  std::vector<Instruction>& step = plan.processes[p].step;
  const uint32_t subject = step[i].subject;
  step.erase(step.begin() + static_cast<ptrdiff_t>(i));
  return std::string(to_string(action)) + " of " + std::to_string(subject) + " removed";
}

// Two tensors that are alive at the same time get one slot: an output and an input of its node.
std::string overlay(Plan& plan, std::mt19937_64& random) {
  std::vector<std::pair<uint32_t, uint32_t>> found;
  for (uint32_t in = 0; in < plan.graph.edges.size(); ++in) {
    for (uint32_t out = 0; out < plan.graph.edges.size(); ++out) {
      const Edge& input = plan.graph.edges[in];
      const Edge& output = plan.graph.edges[out];
      const bool reads = std::find(input.to.begin(), input.to.end(), output.from) != input.to.end();
      if (!reads || input.control || output.control || in == out) continue;
      if (plan.process_of(in) != plan.process_of(out)) continue;
      if (plan.tensors[out].in_place_of != kNone || input.bytes < output.bytes) continue;
      if (plan.tensors[in].slots.size() > 1 || plan.tensors[out].slots.size() > 1) continue;
      found.emplace_back(in, out);
    }
  }
  if (found.empty()) return {};
  const auto [in, out] = found[below(random, found.size())];
  plan.tensors[out].slots = plan.tensors[in].slots;
  return "'" + plan.graph.edges[out].name + "' laid over its input '" + plan.graph.edges[in].name +
         "'";
}

std::string shrink(Plan& plan, std::mt19937_64& random) {
  std::vector<uint32_t> used;
  for (const TensorPlan& tensor : plan.tensors)
    used.insert(used.end(), tensor.slots.begin(), tensor.slots.end());
  if (used.empty()) return {};
  Slot& slot = plan.slots[used[below(random, used.size())]];
  --slot.bytes;
  return "a slot is a byte too short";
}

// One of the versions of a tensor that needs several is left out: its node reads the last one while
// it writes the next. (Versions that are there for readers elsewhere only save a wait.)
std::string fewer_versions(Plan& plan) {
  for (uint32_t e = 0; e < plan.tensors.size(); ++e) {
    const Edge& edge = plan.graph.edges[e];
    const bool own = std::find(edge.to.begin(), edge.to.end(), edge.from) != edge.to.end();
    if (plan.tensors[e].slots.size() < 2 || !own) continue;
    const uint32_t gone = plan.tensors[e].slots.back();
    for (TensorPlan& tensor : plan.tensors) std::erase(tensor.slots, gone);
    return "'" + plan.graph.edges[e].name + "' has a slot less";
  }
  return {};
}

std::string change_route(Plan& plan, std::mt19937_64& random) {
  if (plan.deliveries.empty()) return {};
  Delivery& delivery = plan.deliveries[below(random, plan.deliveries.size())];
  delivery.route = delivery.route == Route::kView ? Route::kCross : Route::kView;
  return "'" + plan.graph.edges[delivery.edge].name + "' goes the other way";
}

std::string disclose(Plan& plan) {
  for (const Delivery& delivery : plan.deliveries) {
    if (delivery.route != Route::kView) continue;
    plan.slots[plan.tensors[delivery.edge].slots[0]].audience = Audience::kNobody;
    return "'" + plan.graph.edges[delivery.edge].name + "' may not be mapped";
  }
  return {};
}

std::string run_first(Plan& plan, std::mt19937_64& random) {
  std::vector<uint32_t> order(plan.graph.edges.size());
  for (uint32_t e = 0; e < order.size(); ++e) order[e] = e;
  std::shuffle(order.begin(), order.end(), random);
  for (uint32_t e : order) {
    const Edge& edge = plan.graph.edges[e];
    const uint32_t p = plan.process_of(e);
    if (edge.delay != 0) continue;
    for (uint32_t reader : edge.to) {
      if (plan.graph.nodes[reader].process != p) continue;
      std::vector<Instruction>& step = plan.processes[p].step;
      auto a = std::find(step.begin(), step.end(), Instruction{Action::kRun, edge.from});
      auto b = std::find(step.begin(), step.end(), Instruction{Action::kRun, reader});
      std::iter_swap(a, b);
      return "'" + plan.graph.nodes[reader].name + "' runs before its input is made";
    }
  }
  return {};
}

// One of the edges for which that holds; kNone if there is none.
template <typename Holds>
uint32_t some_edge(const Plan& plan, std::mt19937_64& random, Holds holds) {
  std::vector<uint32_t> found;
  for (uint32_t e = 0; e < plan.graph.edges.size(); ++e)
    if (holds(e)) found.push_back(e);
  return found.empty() ? kNone : found[below(random, found.size())];
}

std::string miscount(Plan& plan, std::mt19937_64& random) {
  if (plan.tensors.empty()) return {};
  const uint32_t e = below(random, plan.tensors.size());
  uint32_t& fetches = plan.tensors[e].fetches;
  fetches = fetches > 0 && random() % 2 == 0 ? fetches - 1 : fetches + 1;
  return "'" + plan.graph.edges[e].name + "' counts its readers wrongly";
}

std::string forbid_in_place(Plan& plan, std::mt19937_64& random) {
  const uint32_t e = some_edge(
      plan, random, [&](uint32_t each) { return plan.tensors[each].in_place_of != kNone; });
  if (e == kNone) return {};
  plan.graph.nodes[plan.graph.edges[e].from].in_place = false;
  return "'" + plan.graph.edges[e].name + "' is in place, and its node does not allow it";
}

std::string in_place_of_nothing(Plan& plan, std::mt19937_64& random) {
  const auto edges = static_cast<uint32_t>(plan.graph.edges.size());
  if (edges == 0) return {};
  const uint32_t e = below(random, edges);
  plan.tensors[e].in_place_of = edges + below(random, 3);
  return "'" + plan.graph.edges[e].name + "' is in place of an edge that is not there";
}

std::string move_control(Plan& plan, std::mt19937_64& random) {
  const uint32_t e =
      some_edge(plan, random, [&](uint32_t each) { return plan.graph.edges[each].control; });
  if (e == kNone) return {};
  const std::string name = "'" + plan.graph.edges[e].name + "', a control edge, ";
  const auto process = below(random, plan.processes.size());
  switch (random() % 3) {
    case 0:
      plan.deliveries.push_back({.edge = e, .process = process});
      return name + "is delivered";
    case 1: plan.processes[process].step.push_back({Action::kPublish, e}); break;
    default: plan.processes[process].start.push_back({Action::kClaim, e});
  }
  return name + "is claimed or published";
}

}  // namespace

Graph random_graph(std::mt19937_64& random) {
  Graph graph;
  graph.name = "random";
  const uint32_t processes = 1 + below(random, 5), hosts = 1 + below(random, 3);
  for (uint32_t p = 0; p < processes; ++p)
    graph.processes.push_back({"p" + std::to_string(p), "h" + std::to_string(p % hosts), 0});
  const uint32_t nodes = 2 + below(random, 24);
  for (uint32_t n = 0; n < nodes; ++n) {
    Node node;
    node.name = "n" + std::to_string(n);
    node.process = below(random, processes);
    node.in_place = random() % 2 == 0;
    node.compute_us = below(random, 50);
    graph.nodes.push_back(node);
  }
  const uint32_t edges = 1 + below(random, 60);
  for (uint32_t e = 0; e < edges; ++e) {
    Edge edge;
    edge.name = "e" + std::to_string(e);
    edge.delay = random() % 5 == 0 ? 1 : 0;
    edge.from = below(random, nodes);
    edge.shape = {int64_t{16} << below(random, 3)};
    for (uint32_t n = 0; n < nodes; ++n) {
      if ((edge.delay == 0 && n <= edge.from) || random() % 4 != 0) continue;
      edge.to.push_back(n);
    }
    const bool one_process = std::all_of(edge.to.begin(), edge.to.end(), [&](uint32_t n) {
      return graph.nodes[n].process == graph.nodes[edge.from].process;
    });
    edge.control = edge.delay == 0 && one_process && random() % 4 == 0;
    if (edge.control) edge.shape.clear();
    if (!edge.to.empty()) graph.edges.push_back(edge);
  }
  return graph;
}

std::string break_plan(Plan& plan, int way, std::mt19937_64& random) {
  switch (way) {
    case 0: return remove(plan, Action::kPost, random);
    case 1: return remove(plan, Action::kAwait, random);
    case 2: return remove(plan, Action::kClaim, random);
    case 3: return remove(plan, Action::kRun, random);
    case 4: return remove(plan, Action::kPublish, random);
    case 5: return remove(plan, Action::kRelease, random);
    case 6: return overlay(plan, random);
    case 7: return shrink(plan, random);
    case 8: return fewer_versions(plan);
    case 9: return random() % 2 == 0 ? change_route(plan, random) : disclose(plan);
    case 10: return run_first(plan, random);
    case 11: return miscount(plan, random);
    case 12: return forbid_in_place(plan, random);
    case 13: return in_place_of_nothing(plan, random);
    default: return move_control(plan, random);
  }
}

}  // namespace sluice::graph::test
