// Graphs and costs from text: what is read, and what each wrong text is told.
#include <sluice/graph/check.h>
#include <sluice/graph/cost.h>
#include <sluice/graph/pass.h>
#include <sluice/graph/text.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/graph/random_graph.h"
#include "tools/graph/job_graph.h"
#include "tools/graph/models.h"

namespace sluice::graph {
namespace {

namespace networks = ::sluice::tools::networks;

nlohmann::json good() {
  return nlohmann::json::parse(R"({"schema": "sluice.graph/1",
    "processes": [{"name": "a", "host": "h"}, {"name": "b", "host": "h"}],
    "nodes": [{"name": "make", "process": "a"}, {"name": "read", "process": "b"},
              {"name": "more", "process": "b"}],
    "edges": [{"name": "t", "from": "make", "to": ["read"], "dtype": "float32", "shape": [2, 3]},
              {"name": "c", "from": "read", "to": ["more"], "control": true}]})");
}

using Pointer = nlohmann::json::json_pointer;

// Replaces what is at `place` by `value`; a discarded value removes it.
std::string with(const char* place, const nlohmann::json& value) {
  nlohmann::json graph = good();
  const Pointer at(place);
  if (value.is_discarded())
    graph.at(at.parent_pointer()).erase(at.back());
  else
    graph[at] = value;
  return graph.dump();
}

void refuses(const std::string& text, const std::vector<std::string>& words) {
  const Result<Graph> read = read_graph(text);
  INFO(text.substr(0, 600));
  REQUIRE(read.code() == Code::kInvalidArgument);
  const std::string why(read.status().detail());
  INFO(why);
  for (const std::string& word : words) CHECK(why.find(word) != std::string::npos);
  // A remedy follows the cause.
  CHECK(why.size() > 20);
}

const nlohmann::json kGone = nlohmann::json(nlohmann::json::value_t::discarded);

TEST_CASE("a graph is read with all its parts", "[graph]") {
  const Result<Graph> read = read_graph(good().dump());
  INFO(read.status().to_string());
  REQUIRE(read.ok());
  CHECK(read->edges[0].bytes == 24);
  CHECK(read->edges[0].to == std::vector<uint32_t>{1});
  CHECK(read->edges[1].control);
  CHECK(read->nodes[1].process == 1);
}

TEST_CASE("what is written is read as the same graph", "[graph]") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    std::mt19937_64 random(seed);
    const Graph graph = test::random_graph(random);
    const std::string text = to_json(graph);
    const Result<Graph> again = read_graph(text);
    INFO(again.status().to_string());
    REQUIRE(again.ok());
    CHECK(to_json(*again) == text);
  }
}

TEST_CASE("each wrong graph is refused with the cause and the remedy", "[graph]") {
  refuses(with("/edges/0/dtype", "float33"), {"'t'", "'float33' is unknown", "use int8"});
  refuses(with("/edges/0/dtype", kGone), {"'t' has no dtype", "add"});
  refuses(with("/edges/0/shape", kGone), {"'t' has no shape", "add \"shape\"", "control"});
  refuses(with("/edges/0/shape", {2, 0}), {"'t'", "without elements"});
  refuses(with("/edges/0/shape", {2, -1}), {"'t'", "no whole number from 1"});
  refuses(with("/edges/0/shape", {1.5}), {"'t'", "no whole number"});
  refuses(with("/edges/0/shape", {4611686018427387904, 4}), {"'t' has a shape that cannot be"});
  refuses(with("/edges/0/shape", {1, 1, 1, 1, 1, 1, 1, 1, 1}), {"'t'", "up to 8 extents"});
  refuses(with("/nodes/1/process", "c"), {"'read' is placed in 'c'", "add it under processes"});
  refuses(with("/edges/0/to", {"nobody"}), {"'t' names the node 'nobody'", "add it under nodes"});
  refuses(with("/edges/0/from", "nobody"), {"'t' names the node 'nobody'"});
  refuses(with("/edges/0/to", {"read", "read"}), {"'t' names a reader twice"});
  refuses(with("/edges/0/to", nlohmann::json::array()), {"'t' has no reader"});
  refuses(with("/nodes/1/name", "make"), {"more than one node 'make'", "of its own"});
  refuses(with("/processes/1/name", "a"), {"more than one process 'a'"});
  refuses(with("/edges/1/name", "t"), {"more than one edge is named 't'"});
  refuses(with("/edges/0/delay", 2), {"'t' has a delay of 2", "use 0"});
  refuses(with("/edges/0/control", true), {"'t' is a control edge between two processes"});
  refuses(with("/nodes/0/device", "tpu"), {"'make' has the device 'tpu'", "use cpu"});
  refuses(with("/nodes/0/compute_us", -1), {"'make' has a compute_us that is no number"});
  refuses(with("/nodes/0/colour", "red"), {"'make' has the unknown field 'colour'", "use name"});
  refuses(with("/processes/0/host", kGone), {"'a' has no host"});
  refuses(with("/schema", "sluice.graph/2"), {"the schema 'sluice.graph/2'", "sluice.graph/1"});
  refuses(with("/nodes", nlohmann::json::array()), {"names the node 'make'"});
  refuses(with("/nodes", 7), {"nodes that is no list"});
  refuses(with("/nodes/0", 7), {"node number 0 is no object"});
  refuses(with("/edges/0/name", std::string(256, 'x')), {"256 bytes", "255 at most"});
  refuses("", {"no JSON"});
  refuses("[]", {"begin it with {"});
  refuses("{\"schema\": ", {"no JSON"});
  refuses(std::string(100'000, '['), {"more than 16 deep"});
}

TEST_CASE("a cycle is named node by node, with the way out", "[graph]") {
  nlohmann::json graph = good();
  graph["edges"].push_back(
      {{"name", "back"}, {"from", "more"}, {"to", {"make"}}, {"dtype", "float32"}, {"shape", {1}}});
  refuses(graph.dump(), {"cycle of 3 nodes", "'make'", "'read'", "'more'", "\"delay\": 1"});
  graph["edges"].back()["delay"] = 1;
  CHECK(read_graph(graph.dump()).ok());
}

TEST_CASE("tensors that overflow together are refused by the pass", "[graph]") {
  nlohmann::json graph = good();
  for (int i = 0; i < 3; ++i) {
    graph["edges"].push_back({{"name", "large" + std::to_string(i)},
                              {"from", "make"},
                              {"to", {"read"}},
                              {"dtype", "uint8"},
                              {"shape", {INT64_MAX}}});
  }
  Result<Graph> read = read_graph(graph.dump());
  REQUIRE(read.ok());
  const Result<Plan> plan = make_plan(std::move(*read));
  CHECK(plan.code() == Code::kInvalidArgument);
  CHECK(plan.status().detail().find("process 'a' are together above 2^64") != std::string::npos);
}

TEST_CASE("costs are read, fitted and refused", "[graph]") {
  const std::string begin = R"({"schema": "sluice.graph.costs/1", )";
  Result<Costs> costs = read_costs(
      begin + R"("view": {"latency_us": 3}, "cross": {"samples": [[0, 10], [1000, 20], [4000, 50]]},
               "cores": 4})");
  INFO(costs.status().to_string());
  REQUIRE(costs.ok());
  CHECK(costs->view.latency_us == 3);
  CHECK(costs->cross.latency_us == Approx(10));
  CHECK(costs->cross.bytes_per_us == Approx(100));
  CHECK(costs->cores == 4);
  CHECK(to_json(*read_costs(to_json(*costs))) == to_json(*costs));
  for (const char* wrong :
       {R"("cross": {"samples": []}})", R"("cross": {"samples": [[1, 0]]}})",
        R"("cross": {"samples": [[1, 1e300]]}})", R"("cross": {"samples": [[1, 1e-300]]}})",
        R"("cross": {"samples": [[1]]}})", R"("cross": {"samples": [[1, 2]], "latency_us": 1}})",
        R"("cores": 0})", R"("view": {"latency_us": -1}})", R"("views": {}})"}) {
    const Result<Costs> refused = read_costs(begin + wrong);
    INFO(wrong);
    CHECK(refused.code() == Code::kInvalidArgument);
    CHECK(refused.status().detail().size() > 20);
  }
}

// Sums: the sources named in tools/graph/models.cc.
TEST_CASE("the networks have the parameters that their papers say", "[graph]") {
  const std::vector<std::pair<const char*, uint64_t>> sums = {{"vgg16", 138'357'544},
                                                              {"alexnet", 60'965'224},
                                                              {"inception", 23'834'568},
                                                              {"lstm", 66'022'000},
                                                              {"gru", 57'019'000}};
  for (const auto& [name, sum] : sums) {
    INFO(name);
    CHECK(networks::network_named(name).parameters() == sum);
  }
}

TEST_CASE("every network is planned for each number of workers and servers", "[graph]") {
  for (std::string_view name : networks::kModels) {
    for (uint32_t count : {1u, 3u, 8u}) {
      networks::JobShape shape;
      shape.workers = count;
      shape.servers = count;
      shape.one_host = count != 3;
      shape.verify = count == 8;
      const networks::Network network = networks::network_named(name);
      for (Graph graph : {networks::job_graph(networks::tensors_of(network, count), shape),
                          networks::layer_graph(network, shape, 2)}) {
        const Result<Plan> plan = make_plan(std::move(graph));
        INFO(name << ", " << count << ": " << plan.status().to_string());
        REQUIRE(plan.ok());
        CHECK(problem_of(*plan) == "");
        // Who verifies afterwards keeps the weights: a second set instead of one written in place.
        const ProcessPlan& server = plan->processes[0];
        CHECK(server.bytes <= server.unshared_bytes);
        if (!shape.verify) CHECK(server.bytes < server.unshared_bytes);
      }
    }
  }
}

TEST_CASE("an estimate grows with bytes on a line and shrinks with cores", "[graph]") {
  networks::JobShape shape;
  shape.workers = 4;
  shape.one_host = false;
  const auto tensors = networks::tensors_of(networks::network_named("lstm"), 1);
  const Result<Plan> plan = make_plan(networks::job_graph(tensors, shape));
  REQUIRE(plan.ok());
  Costs costs;
  costs.cross = {10, 1000};
  const Result<Estimate> found = estimate(*plan, costs);
  REQUIRE(found.ok());
  // One NIC sends all weights and takes all gradients in: four times the model, one way at a time.
  const double model_us = 66'022'000 * 4.0 / 1000;
  CHECK(found->step_us > 4 * model_us);
  CHECK(found->step_us < 8.2 * model_us);
  CHECK(found->moved_bytes == Approx(8 * 66'022'000 * 4.0));
  costs.cross.bytes_per_us = 500;
  CHECK(estimate(*plan, costs)->step_us == Approx(2 * found->step_us).epsilon(0.01));
  shape.one_host = true;
  shape.compute_us = 1000;
  const Result<Plan> here = make_plan(networks::job_graph(tensors, shape));
  REQUIRE(here.ok());
  Costs cheap;
  cheap.cores = 2;
  CHECK(estimate(*here, cheap)->step_us == Approx(2000).epsilon(0.01));
  cheap.cores = 4;
  CHECK(estimate(*here, cheap)->step_us == Approx(1000).epsilon(0.01));
  CHECK(estimate(*here, cheap, 1).code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace sluice::graph
