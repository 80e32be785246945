#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <vector>

#include <sluice/graph/text.h>

namespace sluice::graph {
namespace {

using Json = nlohmann::json;

// Brackets inside brackets: a graph has 4.
constexpr int kMostDepth = 16;

Status wrong(std::string why) {
  return Status(Code::kInvalidArgument, Scope::kOperation, "graph/read", std::move(why));
}

std::string shown(std::string_view text) {
  std::string safe = "'";
  for (char c : text.substr(0, 80)) safe += c >= ' ' && c <= '~' ? c : '?';
  return safe + "'";
}

// Parses within bounds: the parser itself recurses.
Result<Json> parse(std::string_view text) {
  if (text.size() > kMostTextBytes)
    return wrong("the text is larger than 256 MiB: cut the graph into smaller ones");
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMostDepth) return wrong("the text has brackets more than 16 deep");
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  Json value;
  try {
    value = Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    std::string why = error.what();
    const size_t at = why.find("parse error");
    return wrong("the text is no JSON: " + shown(at == std::string::npos ? why : why.substr(at)));
  }
  if (!value.is_object()) return wrong("the text is no JSON object: begin it with {");
  return value;
}

// One JSON object, with the words for messages about it.
class Fields {
 public:
  Fields(const Json& value, std::string what) : value_(value), what_(std::move(what)) {}

  Status allow(std::initializer_list<const char*> names) const {
    if (!value_.is_object()) return wrong(what_ + " is no object: write it as {...}");
    for (const auto& [key, unused] : value_.items()) {
      bool known = false;
      for (const char* name : names) known = known || key == name;
      if (known) continue;
      std::string all;
      for (const char* name : names) all += (all.empty() ? "" : ", ") + std::string(name);
      return wrong(what_ + " has the unknown field " + shown(key) + ": use " + all);
    }
    return Status();
  }
  bool has(const char* name) const { return value_.contains(name); }
  const Json& at(const char* name) const { return value_.at(name); }
  const std::string& what() const { return what_; }

  Result<std::string> text(const char* name, const char* otherwise = nullptr) const {
    if (!has(name)) {
      if (otherwise != nullptr) return std::string(otherwise);
      return wrong(what_ + " has no " + name + ": add \"" + name + "\": \"...\"");
    }
    if (!at(name).is_string()) return wrong(what_ + " has a " + name + " that is no text");
    return at(name).get<std::string>();
  }
  Result<bool> flag(const char* name) const {
    if (!has(name)) return false;
    if (!at(name).is_boolean())
      return wrong(what_ + " has an " + name + " that is neither true nor false");
    return at(name).get<bool>();
  }
  Result<uint64_t> count(const char* name) const {
    if (!has(name)) return uint64_t{0};
    if (!at(name).is_number_unsigned())
      return wrong(what_ + " has a " + name + " that is no whole number from 0");
    return at(name).get<uint64_t>();
  }
  Result<double> number(const char* name, double otherwise) const {
    if (!has(name)) return otherwise;
    const double value = at(name).is_number() ? at(name).get<double>() : -1;
    if (!(value >= 0) || !std::isfinite(value))
      return wrong(what_ + " has a " + name + " that is no number from 0");
    return value;
  }
  Result<const Json*> list(const char* name) const {
    if (!has(name)) return wrong(what_ + " has no " + name + ": add \"" + name + "\": [...]");
    if (!at(name).is_array())
      return wrong(what_ + " has a " + name + " that is no list: write it as [...]");
    return &at(name);
  }

 private:
  const Json& value_;
  std::string what_;
};

using Numbers = std::unordered_map<std::string, uint32_t>;

Status check_schema(const Fields& document, const std::string& wanted) {
  SLUICE_TRY(std::string schema, document.text("schema"));
  if (schema == wanted) return Status();
  return wrong(document.what() + " has the schema " + shown(schema) + ": this reads " + wanted);
}

class GraphReader {
 public:
  Result<Graph> read(const Json& value) {
    const Fields document(value, "the graph");
    SLUICE_RETURN_IF_ERROR(document.allow({"schema", "name", "processes", "nodes", "edges"}));
    SLUICE_RETURN_IF_ERROR(check_schema(document, "sluice.graph/1"));
    SLUICE_TRY(graph_.name, document.text("name", ""));
    SLUICE_TRY(const Json* processes, document.list("processes"));
    SLUICE_TRY(const Json* nodes, document.list("nodes"));
    SLUICE_TRY(const Json* edges, document.list("edges"));
    if (processes->size() > kMostProcesses || nodes->size() > kMostNodes ||
        edges->size() > kMostEdges) {
      return wrong("the graph has more than " + std::to_string(kMostProcesses) + " processes, " +
                   std::to_string(kMostNodes) + " nodes or " + std::to_string(kMostEdges) +
                   " edges: cut it into smaller ones");
    }
    for (const Json& each : *processes) SLUICE_RETURN_IF_ERROR(read_process(each));
    for (const Json& each : *nodes) SLUICE_RETURN_IF_ERROR(read_node(each));
    for (const Json& each : *edges) SLUICE_RETURN_IF_ERROR(read_edge(each));
    SLUICE_RETURN_IF_ERROR(validate(graph_));
    return std::move(graph_);
  }

 private:
  // "process 'ps0'", or by its place where it has no name yet.
  static std::string called(const Json& value, const char* kind, size_t place) {
    if (value.is_object() && value.contains("name") && value["name"].is_string())
      return std::string(kind) + " " + shown(value["name"].get<std::string>());
    return std::string(kind) + " number " + std::to_string(place);
  }

  Status read_process(const Json& value) {
    const Fields fields(value, called(value, "process", graph_.processes.size()));
    SLUICE_RETURN_IF_ERROR(fields.allow({"name", "host", "memory_bytes"}));
    Process process;
    SLUICE_TRY(process.name, fields.text("name"));
    SLUICE_TRY(process.host, fields.text("host"));
    SLUICE_TRY(process.memory_bytes, fields.count("memory_bytes"));
    if (!processes_.emplace(process.name, static_cast<uint32_t>(graph_.processes.size())).second)
      return wrong("more than one " + fields.what() + ": give each a name of its own");
    graph_.processes.push_back(std::move(process));
    return Status();
  }

  Status read_node(const Json& value) {
    const Fields fields(value, called(value, "node", graph_.nodes.size()));
    SLUICE_RETURN_IF_ERROR(fields.allow(
        {"name", "process", "device", "op", "in_place", "compute_us", "touched_bytes"}));
    Node node;
    SLUICE_TRY(node.name, fields.text("name"));
    SLUICE_TRY(std::string process, fields.text("process"));
    const auto found = processes_.find(process);
    if (found == processes_.end()) {
      return wrong(fields.what() + " is placed in " + shown(process) +
                   ", and no process has that name: add it under processes");
    }
    node.process = found->second;
    SLUICE_TRY(node.device, fields.text("device", "cpu"));
    SLUICE_TRY(node.op, fields.text("op", ""));
    SLUICE_TRY(node.in_place, fields.flag("in_place"));
    SLUICE_TRY(node.compute_us, fields.number("compute_us", 0));
    SLUICE_TRY(node.touched_bytes, fields.count("touched_bytes"));
    if (!nodes_.emplace(node.name, static_cast<uint32_t>(graph_.nodes.size())).second)
      return wrong("more than one " + fields.what() + ": give each a name of its own");
    graph_.nodes.push_back(std::move(node));
    return Status();
  }

  Result<uint32_t> node_named(const Fields& fields, const Json& name) const {
    if (!name.is_string())
      return wrong(fields.what() + " names a node by something that is no text");
    const auto found = nodes_.find(name.get<std::string>());
    if (found != nodes_.end()) return found->second;
    return wrong(fields.what() + " names the node " + shown(name.get<std::string>()) +
                 ", which the graph has not: add it under nodes");
  }

  Status read_edge(const Json& value) {
    const Fields fields(value, called(value, "edge", graph_.edges.size()));
    SLUICE_RETURN_IF_ERROR(
        fields.allow({"name", "from", "to", "dtype", "shape", "delay", "control"}));
    Edge edge;
    SLUICE_TRY(edge.name, fields.text("name"));
    if (!fields.has("from"))
      return wrong(fields.what() + " has no from: name the node that makes it");
    SLUICE_TRY(edge.from, node_named(fields, fields.at("from")));
    SLUICE_TRY(const Json* to, fields.list("to"));
    readers_ += to->size();
    if (readers_ > kMostReaders) {
      return wrong("the edges have more than " + std::to_string(kMostReaders) +
                   " readers together: cut the graph into smaller ones");
    }
    for (const Json& name : *to) {
      SLUICE_TRY(uint32_t node, node_named(fields, name));
      edge.to.push_back(node);
    }
    SLUICE_TRY(uint64_t delay, fields.count("delay"));
    edge.delay = static_cast<uint32_t>(std::min<uint64_t>(delay, 2));
    SLUICE_TRY(edge.control, fields.flag("control"));
    if (!edge.control) SLUICE_RETURN_IF_ERROR(read_tensor(fields, edge));
    graph_.edges.push_back(std::move(edge));
    return Status();
  }

  static Status read_tensor(const Fields& fields, Edge& edge) {
    if (!fields.has("dtype"))
      return wrong(fields.what() + " has no dtype: add \"dtype\": \"float32\", for example");
    if (!fields.has("shape")) {
      return wrong(fields.what() +
                   " has no shape: add \"shape\": [rows, columns], [] for a single element, or "
                   "\"control\": true if it carries nothing");
    }
    SLUICE_TRY(std::string dtype, fields.text("dtype"));
    Result<DataType> known = dtype_named(dtype);
    if (!known.ok()) return wrong(fields.what() + ": " + std::string(known.status().detail()));
    edge.dtype = *known;
    SLUICE_TRY(const Json* shape, fields.list("shape"));
    for (const Json& extent : *shape) {
      if (!extent.is_number_unsigned() || extent.get<uint64_t>() > uint64_t{INT64_MAX}) {
        return wrong(fields.what() + " has an extent that is no whole number from 1 to 2^63 - 1");
      }
      edge.shape.push_back(extent.get<int64_t>());
    }
    return Status();
  }

  Graph graph_;
  Numbers processes_, nodes_;
  size_t readers_ = 0;
};

Result<Line> read_line(const Fields& costs, const char* name, const Line& otherwise) {
  if (!costs.has(name)) return otherwise;
  const Fields fields(costs.at(name), std::string("the cost ") + name);
  SLUICE_RETURN_IF_ERROR(fields.allow({"latency_us", "bytes_per_us", "samples"}));
  if (!fields.has("samples")) {
    Line line;
    SLUICE_TRY(line.latency_us, fields.number("latency_us", 0));
    SLUICE_TRY(line.bytes_per_us, fields.number("bytes_per_us", 0));
    return line;
  }
  if (fields.has("latency_us") || fields.has("bytes_per_us"))
    return wrong(fields.what() + " has samples and figures: give one of them");
  SLUICE_TRY(const Json* list, fields.list("samples"));
  std::vector<Sample> samples;
  for (const Json& each : *list) {
    if (!each.is_array() || each.size() != 2 || !each[0].is_number_unsigned() ||
        !each[1].is_number())
      return wrong(fields.what() + " has a sample that is not [bytes, us]");
    samples.push_back({each[0].get<uint64_t>(), each[1].get<double>()});
  }
  Result<Line> line = fit(samples);
  if (!line.ok()) return wrong(fields.what() + ": " + std::string(line.status().detail()));
  return line;
}

}  // namespace

Result<Graph> read_graph(std::string_view json) {
  SLUICE_TRY(Json value, parse(json));
  return GraphReader().read(value);
}

Result<Costs> read_costs(std::string_view json) {
  SLUICE_TRY(Json value, parse(json));
  const Fields fields(value, "the table of costs");
  SLUICE_RETURN_IF_ERROR(
      fields.allow({"schema", "view", "cross", "memory", "node_us", "cores", "nic_bytes_per_us"}));
  SLUICE_RETURN_IF_ERROR(check_schema(fields, "sluice.graph.costs/1"));
  Costs costs = usual_costs();
  SLUICE_TRY(costs.view, read_line(fields, "view", costs.view));
  SLUICE_TRY(costs.cross, read_line(fields, "cross", costs.cross));
  SLUICE_TRY(costs.memory, read_line(fields, "memory", costs.memory));
  SLUICE_TRY(costs.node_us, fields.number("node_us", costs.node_us));
  SLUICE_TRY(costs.nic_bytes_per_us, fields.number("nic_bytes_per_us", costs.nic_bytes_per_us));
  if (fields.has("cores")) {
    SLUICE_TRY(uint64_t cores, fields.count("cores"));
    if (cores < 1 || cores > 4096) return wrong("the table of costs has cores outside 1 to 4096");
    costs.cores = static_cast<uint32_t>(cores);
  }
  return costs;
}

}  // namespace sluice::graph
