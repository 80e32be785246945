// Graphs, costs and plans as text. The one place that reads JSON of strangers here.
#ifndef SLUICE_GRAPH_TEXT_H_
#define SLUICE_GRAPH_TEXT_H_

#include <string>
#include <string_view>

#include <sluice/graph/cost.h>
#include <sluice/graph/graph.h>
#include <sluice/graph/plan.h>

namespace sluice::graph {

// Largest text that is read, in bytes: a graph of 262,144 edges has less.
inline constexpr size_t kMostTextBytes = size_t{256} << 20;

// A graph of schema sluice.graph/1 (docs/graph.md), validated.
// Errors: kInvalidArgument, with the place in the file or the name of the part, and the remedy.
Result<Graph> read_graph(std::string_view json);
// What read_graph() reads as the same graph.
std::string to_json(const Graph& graph);

// Costs of schema sluice.graph.costs/1. A line is given by latency_us and bytes_per_us, or by
// samples [[bytes, us], ...] that it is fitted to. What is left out is as in usual_costs().
Result<Costs> read_costs(std::string_view json);
std::string to_json(const Costs& costs);

// Schema sluice.graph.plan/1: slots, tensors, deliveries and instructions, by name.
std::string to_json(const Plan& plan);
// Tables for people: memory by process, then each edge with its decisions; `instructions`: and what
// each process does in a step.
std::string to_text(const Plan& plan, bool instructions = false);

}  // namespace sluice::graph

#endif  // SLUICE_GRAPH_TEXT_H_
