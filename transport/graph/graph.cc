#include <sluice/graph/graph.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <unordered_set>

#include <sluice/base/tensor_descriptor.h>

namespace sluice::graph {
namespace {

Status wrong(std::string why) {
  return Status(Code::kInvalidArgument, Scope::kOperation, "graph/validate", std::move(why));
}

std::string shown(const std::string& name) { return "'" + name.substr(0, 80) + "'"; }

template <typename Part>
Status check_names(const std::vector<Part>& parts, const std::string& what, size_t most) {
  if (parts.size() > most) {
    return wrong("the graph has a " + what + " " + std::to_string(parts.size()) + " times, and " +
                 std::to_string(most) + " is the most: cut it into smaller graphs");
  }
  std::unordered_set<std::string> seen;
  for (const Part& part : parts) {
    if (part.name.empty()) return wrong("a " + what + " has no name: give it one of its own");
    if (part.name.size() > kMostNameBytes) {
      return wrong(what + " " + shown(part.name) + " has a name of " +
                   std::to_string(part.name.size()) + " bytes: use 255 at most");
    }
    if (!seen.insert(part.name).second) {
      return wrong("more than one " + what + " is named " + shown(part.name) +
                   ": give each a name of its own");
    }
  }
  return Status();
}

bool known_device(const std::string& device) {
  if (device == "cpu") return true;
  const std::string prefix = "cuda:";
  if (!device.starts_with(prefix) || device.size() == prefix.size() || device.size() > 8)
    return false;
  return std::all_of(device.begin() + static_cast<ptrdiff_t>(prefix.size()), device.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

Status check_node(const Graph& graph, const Node& node) {
  if (node.process >= graph.processes.size()) {
    return wrong("node " + shown(node.name) +
                 " is placed in a process that the graph has not: list it under processes");
  }
  if (!known_device(node.device)) {
    return wrong("node " + shown(node.name) + " has the device " + shown(node.device) +
                 ": use cpu, or cuda: and a number");
  }
  if (!(node.compute_us >= 0) || node.compute_us > 1e12) {
    return wrong("node " + shown(node.name) +
                 " has a compute_us that is no time: use 0 to 1e12 microseconds");
  }
  return Status();
}

Status check_readers(const Graph& graph, const Edge& edge) {
  const std::string name = "edge " + shown(edge.name);
  if (edge.from >= graph.nodes.size())
    return wrong(name + " comes from a node that the graph has not");
  if (edge.to.empty()) {
    return wrong(name + " has no reader: name one under to, or leave the edge out");
  }
  std::vector<uint32_t> readers = edge.to;
  std::sort(readers.begin(), readers.end());
  if (std::adjacent_find(readers.begin(), readers.end()) != readers.end())
    return wrong(name + " names a reader twice: name it once");
  if (readers.back() >= graph.nodes.size())
    return wrong(name + " goes to a node that the graph has not");
  if (edge.delay > 1) {
    return wrong(name + " has a delay of " + std::to_string(edge.delay) +
                 ": use 0 (this step) or 1 (the next)");
  }
  return Status();
}

Status check_edge(const Graph& graph, Edge& edge) {
  SLUICE_RETURN_IF_ERROR(check_readers(graph, edge));
  const std::string name = "edge " + shown(edge.name);
  if (edge.control) {
    for (uint32_t reader : edge.to) {
      if (graph.nodes[reader].process == graph.nodes[edge.from].process) continue;
      return wrong(name + " is a control edge between two processes: send a small tensor instead");
    }
    if (edge.delay != 0)
      return wrong(name + " is a control edge with a delay: steps are in order without it");
    edge.bytes = 0;
    return Status();
  }
  if (!edge.dtype.valid()) return wrong(name + " has an unknown dtype: use float32, for example");
  Result<TensorDescriptor> tensor = TensorDescriptor::compact(edge.shape, edge.dtype);
  if (!tensor.ok()) {
    return wrong(name + " has a shape that cannot be: " + std::string(tensor.status().detail()) +
                 "; use up to 8 extents from 1, below 2^63 bytes together");
  }
  edge.bytes = tensor->span_bytes();
  if (edge.bytes == 0) {
    return wrong(name +
                 " has a shape without elements: leave the edge out, or make it a control "
                 "edge");
  }
  return Status();
}

Status check_cycle(const Graph& graph) {
  const std::vector<uint32_t> order = order_of(graph);
  if (order.size() == graph.nodes.size()) return Status();
  std::vector<bool> placed(graph.nodes.size());
  for (uint32_t node : order) placed[node] = true;
  // Each node that is left has an input from another one that is left: going back finds the cycle.
  std::vector<uint32_t> before(graph.nodes.size());
  for (const Edge& edge : graph.edges) {
    if (edge.delay != 0 || placed[edge.from]) continue;
    for (uint32_t reader : edge.to) before[reader] = edge.from;
  }
  uint32_t at = 0;
  while (placed[at]) ++at;
  std::vector<bool> seen(graph.nodes.size());
  for (; !seen[at]; at = before[at]) seen[at] = true;
  std::string path = shown(graph.nodes[at].name);
  size_t named = 0;
  for (uint32_t node = before[at]; node != at; node = before[node]) {
    if (++named < 8) path = shown(graph.nodes[node].name) + " > " + path;
  }
  return wrong("the graph has a cycle of " + std::to_string(named + 1) +
               " nodes: " + (named >= 8 ? "... > " : "") + path +
               "; give the edge that goes to the next step \"delay\": 1");
}

}  // namespace

std::vector<uint32_t> order_of(const Graph& graph) {
  std::vector<uint32_t> waiting(graph.nodes.size());
  std::vector<std::vector<uint32_t>> outputs(graph.nodes.size());
  for (uint32_t e = 0; e < graph.edges.size(); ++e) {
    const Edge& edge = graph.edges[e];
    if (edge.delay != 0) continue;
    outputs[edge.from].push_back(e);
    for (uint32_t reader : edge.to) ++waiting[reader];
  }
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ready;
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    if (waiting[n] == 0) ready.push(n);
  }
  std::vector<uint32_t> order;
  while (!ready.empty()) {
    const uint32_t node = ready.top();
    ready.pop();
    order.push_back(node);
    for (uint32_t e : outputs[node]) {
      for (uint32_t reader : graph.edges[e].to) {
        if (--waiting[reader] == 0) ready.push(reader);
      }
    }
  }
  return order;
}

Result<DataType> dtype_named(const std::string& name) {
  static const std::vector<DataType> known = [] {
    std::vector<DataType> all = {int8,    int16,    int32,     int64,      uint8,
                                 uint16,  uint32,   uint64,    float16,    float32,
                                 float64, bfloat16, complex64, complex128, boolean};
    for (uint8_t code = static_cast<uint8_t>(TypeCode::kFloat8_e3m4);
         code <= static_cast<uint8_t>(TypeCode::kFloat8_e8m0fnu); ++code)
      all.push_back({static_cast<TypeCode>(code), 8, 1});
    return all;
  }();
  if (name == "bool") return boolean;
  for (DataType dtype : known) {
    if (dtype.to_string() == name) return dtype;
  }
  return wrong("the dtype " + shown(name) +
               " is unknown: use int8 to int64, uint8 to uint64, float16, bfloat16, float32, "
               "float64, a float8, complex64, complex128 or bool");
}

Status validate(Graph& graph) {
  if (graph.processes.empty()) return wrong("the graph has no process: list one at least");
  if (graph.nodes.empty()) return wrong("the graph has no node: list one at least");
  SLUICE_RETURN_IF_ERROR(check_names(graph.processes, "process", kMostProcesses));
  SLUICE_RETURN_IF_ERROR(check_names(graph.nodes, "node", kMostNodes));
  SLUICE_RETURN_IF_ERROR(check_names(graph.edges, "edge", kMostEdges));
  if (graph.nodes.size() * graph.processes.size() > kMostClocks) {
    return wrong("nodes times processes are above " + std::to_string(kMostClocks) +
                 ": cut the graph into smaller ones");
  }
  for (const Process& process : graph.processes) {
    if (process.host.empty()) {
      return wrong("process " + shown(process.name) +
                   " has no host: name one; equal names share memory");
    }
  }
  for (const Node& node : graph.nodes) SLUICE_RETURN_IF_ERROR(check_node(graph, node));
  size_t readers = 0;
  for (Edge& edge : graph.edges) {
    SLUICE_RETURN_IF_ERROR(check_edge(graph, edge));
    readers += edge.to.size();
  }
  if (readers > kMostReaders)
    return wrong("the edges have more than " + std::to_string(kMostReaders) + " readers together");
  return check_cycle(graph);
}

}  // namespace sluice::graph
