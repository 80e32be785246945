#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <sluice/graph/text.h>

namespace sluice::graph {
namespace {

using Json = nlohmann::ordered_json;

// A name of a stranger may be no UTF-8: it is written with replacements instead of refused.
std::string dump(const Json& value) {
  return value.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json names(const Graph& graph, const std::vector<uint32_t>& nodes) {
  Json list = Json::array();
  for (uint32_t node : nodes) list.push_back(graph.nodes[node].name);
  return list;
}

Json line_of(const Line& line) {
  return {{"latency_us", line.latency_us}, {"bytes_per_us", line.bytes_per_us}};
}

std::string audience_of(Audience audience) {
  return audience == Audience::kNobody ? "nobody" : "same user";
}

Json instruction_of(const Plan& plan, const Instruction& each) {
  Json entry = {{"do", to_string(each.action)}};
  if (each.action == Action::kRun) {
    entry["node"] = plan.graph.nodes[each.subject].name;
  } else {
    const bool of_edge = each.action == Action::kClaim || each.action == Action::kPublish;
    const uint32_t edge = of_edge ? each.subject : plan.deliveries[each.subject].edge;
    entry["edge"] = plan.graph.edges[edge].name;
  }
  return entry;
}

Json instructions_of(const Plan& plan, const std::vector<Instruction>& list) {
  Json all = Json::array();
  for (const Instruction& each : list) all.push_back(instruction_of(plan, each));
  return all;
}

std::string format(const char* form, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char* form, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, form);
  const int length = std::vsnprintf(text, sizeof text, form, arguments);
  va_end(arguments);
  return std::string(text, static_cast<size_t>(std::clamp<int>(length, 0, sizeof text - 1)));
}

double mebibytes(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

std::string slots_text(const TensorPlan& tensor) {
  std::string text;
  for (uint32_t slot : tensor.slots) text += (text.empty() ? "" : "/") + std::to_string(slot);
  return text;
}

// "view worker0 ahead, cross worker1": where the tensor goes.
std::string ways_of(const Plan& plan, uint32_t e, const std::vector<uint32_t>& deliveries) {
  std::string text;
  const uint32_t home = plan.process_of(e);
  const std::vector<uint32_t>& to = plan.graph.edges[e].to;
  const bool local = std::any_of(to.begin(), to.end(), [&](uint32_t reader) {
    return plan.graph.nodes[reader].process == home;
  });
  if (local) text = "local";
  for (uint32_t d : deliveries) {
    const Delivery& delivery = plan.deliveries[d];
    text += (text.empty() ? "" : ", ") + std::string(to_string(delivery.route)) + " " +
            plan.graph.processes[delivery.process].name + (delivery.ahead ? " ahead" : "");
  }
  return text;
}

}  // namespace

std::string to_json(const Graph& graph) {
  Json document = {{"schema", "sluice.graph/1"}, {"name", graph.name}};
  Json processes = Json::array(), nodes = Json::array(), edges = Json::array();
  for (const Process& process : graph.processes) {
    Json entry = {{"name", process.name}, {"host", process.host}};
    if (process.memory_bytes > 0) entry["memory_bytes"] = process.memory_bytes;
    processes.push_back(std::move(entry));
  }
  for (const Node& node : graph.nodes) {
    Json entry = {{"name", node.name}, {"process", graph.processes[node.process].name}};
    if (node.device != "cpu") entry["device"] = node.device;
    if (!node.op.empty()) entry["op"] = node.op;
    if (node.in_place) entry["in_place"] = true;
    if (node.compute_us > 0) entry["compute_us"] = node.compute_us;
    if (node.touched_bytes > 0) entry["touched_bytes"] = node.touched_bytes;
    nodes.push_back(std::move(entry));
  }
  for (const Edge& edge : graph.edges) {
    Json entry = {
        {"name", edge.name}, {"from", graph.nodes[edge.from].name}, {"to", names(graph, edge.to)}};
    if (edge.control) {
      entry["control"] = true;
    } else {
      entry["dtype"] = edge.dtype.to_string();
      entry["shape"] = edge.shape;
      if (edge.delay > 0) entry["delay"] = edge.delay;
    }
    edges.push_back(std::move(entry));
  }
  document["processes"] = std::move(processes);
  document["nodes"] = std::move(nodes);
  document["edges"] = std::move(edges);
  return dump(document);
}

std::string to_json(const Costs& costs) {
  return dump({{"schema", "sluice.graph.costs/1"},
               {"view", line_of(costs.view)},
               {"cross", line_of(costs.cross)},
               {"memory", line_of(costs.memory)},
               {"node_us", costs.node_us},
               {"cores", costs.cores},
               {"nic_bytes_per_us", costs.nic_bytes_per_us}});
}

std::string to_json(const Plan& plan) {
  const Graph& graph = plan.graph;
  Json document = {{"schema", "sluice.graph.plan/1"}, {"graph", graph.name}};
  Json slots = Json::array(), tensors = Json::array(), deliveries = Json::array(),
       processes = Json::array();
  for (const Slot& slot : plan.slots) {
    slots.push_back({{"process", graph.processes[slot.process].name},
                     {"bytes", slot.bytes},
                     {"audience", audience_of(slot.audience)}});
  }
  for (uint32_t e = 0; e < graph.edges.size(); ++e) {
    if (graph.edges[e].control) continue;
    const TensorPlan& tensor = plan.tensors[e];
    Json entry = {
        {"edge", graph.edges[e].name}, {"bytes", graph.edges[e].bytes}, {"slots", tensor.slots}};
    if (tensor.in_place_of != kNone) entry["in_place_of"] = graph.edges[tensor.in_place_of].name;
    tensors.push_back(std::move(entry));
  }
  for (const Delivery& delivery : plan.deliveries) {
    Json entry = {{"edge", graph.edges[delivery.edge].name},
                  {"to", graph.processes[delivery.process].name},
                  {"route", to_string(delivery.route)},
                  {"ahead", delivery.ahead}};
    if (delivery.slot != kNone) entry["slot"] = delivery.slot;
    deliveries.push_back(std::move(entry));
  }
  for (uint32_t p = 0; p < plan.processes.size(); ++p) {
    const ProcessPlan& process = plan.processes[p];
    processes.push_back({{"name", graph.processes[p].name},
                         {"bytes", process.bytes},
                         {"unshared_bytes", process.unshared_bytes},
                         {"start", instructions_of(plan, process.start)},
                         {"step", instructions_of(plan, process.step)}});
  }
  document["slots"] = std::move(slots);
  document["tensors"] = std::move(tensors);
  document["deliveries"] = std::move(deliveries);
  document["processes"] = std::move(processes);
  return dump(document);
}

std::string to_text(const Plan& plan, bool instructions) {
  const Graph& graph = plan.graph;
  std::vector<std::vector<uint32_t>> ways(graph.edges.size());
  for (uint32_t d = 0; d < plan.deliveries.size(); ++d) ways[plan.deliveries[d].edge].push_back(d);
  std::string text =
      format("%-24s %-16s %12s %14s\n", "process", "host", "memory MiB", "unshared MiB");
  for (uint32_t p = 0; p < plan.processes.size(); ++p) {
    text += format("%-24.100s %-16.100s %12.2f %14.2f\n", graph.processes[p].name.c_str(),
                   graph.processes[p].host.c_str(), mebibytes(plan.processes[p].bytes),
                   mebibytes(plan.processes[p].unshared_bytes));
  }
  text += format("\n%-36s %12s %-10s %-9s %s\n", "edge", "bytes", "audience", "slots", "goes");
  for (uint32_t e = 0; e < graph.edges.size(); ++e) {
    if (graph.edges[e].control) continue;
    const TensorPlan& tensor = plan.tensors[e];
    text += format("%-36.255s %12llu %-10s %-9s ", graph.edges[e].name.c_str(),
                   static_cast<unsigned long long>(graph.edges[e].bytes),
                   audience_of(plan.slots[tensor.slots[0]].audience).c_str(),
                   slots_text(tensor).c_str());
    text += ways_of(plan, e, ways[e]);
    if (tensor.in_place_of != kNone)
      text += "; in place of " + graph.edges[tensor.in_place_of].name;
    text += "\n";
  }
  for (uint32_t p = 0; instructions && p < plan.processes.size(); ++p) {
    text += "\n" + graph.processes[p].name + ", in each step:\n";
    for (const Instruction& each : plan.processes[p].step) {
      const Json entry = instruction_of(plan, each);
      text += format("  %-8s ", std::string(to_string(each.action)).c_str()) +
              (entry.contains("node") ? entry["node"] : entry["edge"]).get<std::string>() + "\n";
    }
  }
  return text;
}

}  // namespace sluice::graph
