// The pass: decisions on small graphs, and on graphs by chance what the checker says of them.
#include <sluice/graph/check.h>
#include <sluice/graph/pass.h>

#include <array>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>

#include "tests/graph/random_graph.h"

namespace sluice::graph {
namespace {

Graph two_processes(const char* second_host) {
  Graph graph;
  graph.processes = {{"a", "one", 0}, {"b", second_host, 0}};
  return graph;
}

uint32_t add_node(Graph& graph, const char* name, uint32_t process, bool in_place = false) {
  Node node;
  node.name = name;
  node.process = process;
  node.in_place = in_place;
  graph.nodes.push_back(node);
  return static_cast<uint32_t>(graph.nodes.size() - 1);
}

uint32_t add_edge(Graph& graph, const char* name, uint32_t from, std::vector<uint32_t> to,
                  uint32_t delay = 0, int64_t elements = 256) {
  Edge edge;
  edge.name = name;
  edge.from = from;
  edge.to = std::move(to);
  edge.delay = delay;
  edge.shape = {elements};
  graph.edges.push_back(edge);
  return static_cast<uint32_t>(graph.edges.size() - 1);
}

Plan planned(Graph graph, const PassOptions& options = {}) {
  Result<Plan> plan = make_plan(std::move(graph), options);
  INFO(plan.status().to_string());
  REQUIRE(plan.ok());
  CHECK(problem_of(*plan) == "");
  return std::move(*plan);
}

TEST_CASE("an edge stays in its process, is a view on its host, or crosses", "[graph]") {
  for (const char* host : {"one", "two"}) {
    Graph graph = two_processes(host);
    const uint32_t make = add_node(graph, "make", 0), here = add_node(graph, "here", 0),
                   there = add_node(graph, "there", 1), again = add_node(graph, "again", 1);
    const uint32_t local = add_edge(graph, "local", make, {here});
    const uint32_t away = add_edge(graph, "away", make, {here, there, again});
    const Plan plan = planned(graph);
    REQUIRE(plan.deliveries.size() == 1);  // two readers of a process share one
    const Delivery& delivery = plan.deliveries[0];
    CHECK(delivery.edge == away);
    CHECK(delivery.first_reader == there);
    CHECK(delivery.last_reader == again);
    CHECK(delivery.ahead);
    const bool same = std::string(host) == "one";
    CHECK(delivery.route == (same ? Route::kView : Route::kCross));
    CHECK((delivery.slot == kNone) == same);
    CHECK(plan.slots[plan.tensors[local].slots[0]].audience == Audience::kNobody);
    CHECK(plan.slots[plan.tensors[away].slots[0]].audience ==
          (same ? Audience::kSameUser : Audience::kNobody));
    CHECK(plan.processes[1].bytes == (same ? 0u : 1024u));
  }
}

TEST_CASE("memory is used again once the last reader has gone", "[graph]") {
  Graph graph = two_processes("one");
  const uint32_t a = add_node(graph, "a", 0), b = add_node(graph, "b", 0),
                 c = add_node(graph, "c", 0), d = add_node(graph, "d", 0);
  const uint32_t ab = add_edge(graph, "ab", a, {b}), bc = add_edge(graph, "bc", b, {c}),
                 cd = add_edge(graph, "cd", c, {d});
  const Plan plan = planned(graph);
  CHECK(plan.tensors[ab].slots == plan.tensors[cd].slots);
  CHECK(plan.tensors[ab].slots != plan.tensors[bc].slots);
  CHECK(plan.processes[0].bytes == 2048);
  CHECK(plan.processes[0].unshared_bytes == 3072);
  for (Node& node : graph.nodes) node.in_place = true;
  const Plan in_place = planned(graph);
  CHECK(in_place.tensors[bc].in_place_of == ab);
  CHECK(in_place.tensors[cd].in_place_of == bc);
  CHECK(in_place.processes[0].bytes == 1024);
  CHECK(planned(graph, {.share_memory = false}).processes[0].bytes == 3072);
}

// Weights that a worker reads, whose gradient updates them.
Graph training(bool late_reader) {
  Graph graph = two_processes("one");
  const uint32_t update = add_node(graph, "update", 0, true), step = add_node(graph, "step", 1);
  std::vector<uint32_t> readers = {update, step};
  if (late_reader) readers.push_back(add_node(graph, "late", 1));
  add_edge(graph, "weights", update, readers, 1);
  add_edge(graph, "gradient", step, {update});
  return graph;
}

TEST_CASE("weights are updated in place if their readers are known to have ended", "[graph]") {
  const Plan plan = planned(training(false));
  CHECK(plan.tensors[0].in_place_of == 0);  // over itself
  CHECK(plan.tensors[0].slots.size() == 1);
}

TEST_CASE("a reader that nobody waits for keeps a second set of weights", "[graph]") {
  const Plan plan = planned(training(true));
  CHECK(plan.tensors[0].in_place_of == kNone);
  CHECK(plan.tensors[0].slots.size() == 2);
}

TEST_CASE("a process with little memory asks late for its largest tensors", "[graph]") {
  Graph graph = two_processes("two");
  const uint32_t make = add_node(graph, "make", 0);
  const std::array<uint32_t, 3> readers = {add_node(graph, "x", 1), add_node(graph, "y", 1),
                                           add_node(graph, "z", 1)};
  for (uint32_t i = 0; i < 3; ++i)
    add_edge(graph, i == 0 ? "0" : i == 1 ? "1" : "2", make, {readers[i]}, 0, 256 << i);
  CHECK(planned(graph).processes[1].bytes == 7 * 1024);
  graph.processes[1].memory_bytes = 5 * 1024;
  const Plan plan = planned(graph);
  CHECK(plan.processes[1].bytes <= 5 * 1024);
  CHECK(plan.deliveries[0].ahead);
  CHECK_FALSE(plan.deliveries[1].ahead);
  CHECK_FALSE(plan.deliveries[2].ahead);
  graph.processes[1].memory_bytes = 4 * 1024 - 1;
  const Result<Plan> none = make_plan(graph);
  CHECK(none.code() == Code::kNoMemory);
  CHECK(none.status().detail().find("needs 4096 bytes and may have 4095") != std::string::npos);
}

// A plan that a checker accepts by an accident of how it looks would pass the tests above.
TEST_CASE("the checker accepts every plan of graphs by chance", "[graph]") {
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    std::mt19937_64 random(seed);
    Graph graph = test::random_graph(random);
    const PassOptions options{.share_memory = seed % 4 != 0, .ask_ahead = seed % 3 != 0};
    Result<Plan> plan = make_plan(graph, options);
    INFO("seed " << seed << ": " << plan.status().to_string());
    REQUIRE(plan.ok());
    REQUIRE(problem_of(*plan) == "");
    for (const ProcessPlan& process : plan->processes)
      REQUIRE(process.bytes <= process.unshared_bytes);
  }
}

TEST_CASE("the checker finds each planted error", "[graph]") {
  std::array<int, test::kWaysToBreak> planted{};
  for (uint64_t seed = 0; seed < 800; ++seed) {
    for (int way = 0; way < test::kWaysToBreak; ++way) {
      std::mt19937_64 random(seed);
      Result<Plan> plan = make_plan(test::random_graph(random));
      REQUIRE(plan.ok());
      const std::string what = test::break_plan(*plan, way, random);
      if (what.empty()) continue;
      INFO("seed " << seed << ", way " << way << ": " << what);
      REQUIRE(problem_of(*plan) != "");
      ++planted[static_cast<size_t>(way)];
    }
  }
  for (int count : planted) CHECK(count > 20);
}

}  // namespace
}  // namespace sluice::graph
