#include <sluice/graph/pass.h>

#include <algorithm>
#include <string>

#include <sluice/graph/timeline.h>

#include "transport/graph/memory.h"

namespace sluice::graph {
namespace {

class Pass {
 public:
  Pass(Graph graph, const PassOptions& options)
      : options_(options), plan_{.graph = std::move(graph)}, timeline_(plan_.graph) {
    plan_.tensors.resize(plan_.graph.edges.size());
    plan_.processes.resize(plan_.graph.processes.size());
  }

  Result<Plan> run() {
    partition();
    MemoryPlanner memory(plan_, timeline_, options_);
    for (uint32_t p = 0; p < plan_.processes.size(); ++p)
      SLUICE_RETURN_IF_ERROR(plan_memory(memory, p));
    index();
    for (uint32_t p = 0; p < plan_.processes.size(); ++p) write_process(p);
    return std::move(plan_);
  }

 private:
  // Which edges leave their process, and how.
  void partition() {
    const Graph& graph = plan_.graph;
    std::vector<uint32_t> found(graph.processes.size(), kNone);  // delivery of the edge at hand
    for (uint32_t e = 0; e < graph.edges.size(); ++e) {
      const Edge& edge = graph.edges[e];
      const uint32_t home = plan_.process_of(e);
      const size_t first = plan_.deliveries.size();
      for (uint32_t reader : edge.to) {
        const uint32_t process = graph.nodes[reader].process;
        if (edge.control || process == home) continue;
        if (found[process] == kNone) {
          found[process] = static_cast<uint32_t>(plan_.deliveries.size());
          const bool same = graph.processes[process].host == graph.processes[home].host;
          plan_.deliveries.push_back({e, process, same ? Route::kView : Route::kCross, kNone,
                                      options_.ask_ahead, reader, reader});
          continue;
        }
        Delivery& delivery = plan_.deliveries[found[process]];
        const uint32_t position = timeline_.position(reader);
        if (position < timeline_.position(delivery.first_reader)) delivery.first_reader = reader;
        if (position > timeline_.position(delivery.last_reader)) delivery.last_reader = reader;
      }
      for (size_t d = first; d < plan_.deliveries.size(); ++d)
        found[plan_.deliveries[d].process] = kNone;
      plan_.tensors[e].fetches = static_cast<uint32_t>(plan_.deliveries.size() - first);
    }
  }

  // Memory that is asked for a step ahead is in use at all times. If the process has not as much,
  // the largest tensors are asked for late, into memory that they share.
  Status plan_memory(MemoryPlanner& memory, uint32_t p) {
    const uint64_t limit = plan_.graph.processes[p].memory_bytes;
    const size_t slots_before = plan_.slots.size();
    std::vector<uint32_t> ahead;
    for (uint32_t d = 0; d < plan_.deliveries.size() && limit > 0; ++d) {
      const Delivery& delivery = plan_.deliveries[d];
      if (delivery.process == p && delivery.route == Route::kCross && delivery.ahead)
        ahead.push_back(d);
    }
    std::stable_sort(ahead.begin(), ahead.end(), [&](uint32_t a, uint32_t b) {
      return bytes_of(plan_.deliveries[a]) < bytes_of(plan_.deliveries[b]);
    });
    for (;;) {
      SLUICE_RETURN_IF_ERROR(memory.plan_process(p));
      if (limit == 0 || plan_.processes[p].bytes <= limit) return Status();
      if (ahead.empty()) break;
      plan_.deliveries[ahead.back()].ahead = false;
      ahead.pop_back();
      plan_.slots.resize(slots_before);
    }
    return Status(Code::kNoMemory, Scope::kOperation, "graph/pass",
                  "process '" + plan_.graph.processes[p].name + "' needs " +
                      std::to_string(plan_.processes[p].bytes) + " bytes and may have " +
                      std::to_string(limit) + ": raise its memory_bytes, or place nodes elsewhere");
  }

  uint64_t bytes_of(const Delivery& delivery) const {
    return plan_.graph.edges[delivery.edge].bytes;
  }

  void index() {
    outputs_.resize(plan_.graph.nodes.size());
    first_read_.resize(plan_.graph.nodes.size());
    last_read_.resize(plan_.graph.nodes.size());
    for (uint32_t e = 0; e < plan_.graph.edges.size(); ++e) {
      if (!plan_.graph.edges[e].control) outputs_[plan_.graph.edges[e].from].push_back(e);
    }
    for (uint32_t d = 0; d < plan_.deliveries.size(); ++d) {
      first_read_[plan_.deliveries[d].first_reader].push_back(d);
      last_read_[plan_.deliveries[d].last_reader].push_back(d);
    }
  }

  void write_process(uint32_t p) {
    ProcessPlan& process = plan_.processes[p];
    for (uint32_t node : timeline_.order(p)) {
      for (uint32_t e : outputs_[node]) {
        if (plan_.graph.edges[e].delay == 0) continue;
        process.start.push_back({Action::kClaim, e});
        if (plan_.tensors[e].fetches > 0) process.start.push_back({Action::kPublish, e});
      }
      write_node(process, node);
    }
    for (uint32_t node : timeline_.order(p)) {
      for (uint32_t d : first_read_[node]) {
        if (plan_.deliveries[d].ahead) process.start.push_back({Action::kPost, d});
      }
    }
  }

  // What others wait for goes out before anything is given back or asked for.
  void write_node(ProcessPlan& process, uint32_t node) {
    std::vector<Instruction>& step = process.step;
    for (uint32_t d : first_read_[node]) {
      if (!plan_.deliveries[d].ahead) step.push_back({Action::kPost, d});
    }
    for (uint32_t d : first_read_[node]) step.push_back({Action::kAwait, d});
    for (uint32_t e : outputs_[node]) step.push_back({Action::kClaim, e});
    step.push_back({Action::kRun, node});
    for (uint32_t e : outputs_[node]) {
      if (plan_.tensors[e].fetches > 0) step.push_back({Action::kPublish, e});
    }
    for (uint32_t d : last_read_[node]) step.push_back({Action::kRelease, d});
    for (uint32_t d : last_read_[node]) {
      if (plan_.deliveries[d].ahead) step.push_back({Action::kPost, d});
    }
  }

  const PassOptions options_;
  Plan plan_;
  Timeline timeline_;
  std::vector<std::vector<uint32_t>> outputs_;
  std::vector<std::vector<uint32_t>> first_read_, last_read_;  // deliveries by node
};

}  // namespace

std::string_view to_string(Route route) {
  switch (route) {
    case Route::kLocal: return "local";
    case Route::kView: return "view";
    case Route::kCross: return "cross";
  }
  return "?";
}

std::string_view to_string(Action action) {
  switch (action) {
    case Action::kPost: return "post";
    case Action::kAwait: return "await";
    case Action::kClaim: return "claim";
    case Action::kRun: return "run";
    case Action::kPublish: return "publish";
    case Action::kRelease: return "release";
  }
  return "?";
}

Result<Plan> make_plan(Graph graph, const PassOptions& options) {
  SLUICE_RETURN_IF_ERROR(validate(graph));
  return Pass(std::move(graph), options).run();
}

}  // namespace sluice::graph
