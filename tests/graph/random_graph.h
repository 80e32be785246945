// Graphs by chance, and plans with a planted error.
#ifndef SLUICE_TESTS_GRAPH_RANDOM_GRAPH_H_
#define SLUICE_TESTS_GRAPH_RANDOM_GRAPH_H_

#include <cstdint>
#include <random>
#include <string>

#include <sluice/graph/graph.h>
#include <sluice/graph/plan.h>

namespace sluice::graph::test {

// 1 to 5 processes on 1 to 3 hosts, up to 25 nodes, up to 60 edges of few sizes, some with a delay,
// some for control.
Graph random_graph(std::mt19937_64& random);

// Breaks the plan in one way and says how; empty if that way does not apply to it.
inline constexpr int kWaysToBreak = 15;
std::string break_plan(Plan& plan, int way, std::mt19937_64& random);

}  // namespace sluice::graph::test

#endif  // SLUICE_TESTS_GRAPH_RANDOM_GRAPH_H_
