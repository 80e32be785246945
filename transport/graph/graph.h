// A dataflow graph: what is computed where in one step, and which tensors go between.
// Values only; knows no memory, no endpoint and no file.
#ifndef SLUICE_GRAPH_GRAPH_H_
#define SLUICE_GRAPH_GRAPH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <sluice/base/dtype.h>
#include <sluice/base/result.h>

namespace sluice::graph {

// What one graph may have. A graph can come from a stranger's file; 1,024 workers of VGG16 with 16
// servers have 3,000 nodes and 34,000 edges.
inline constexpr size_t kMostProcesses = 4'096;
inline constexpr size_t kMostNodes = 65'536;
inline constexpr size_t kMostEdges = 262'144;
// Readers of all edges together.
inline constexpr size_t kMostReaders = 1'048'576;
// Nodes times processes: the pass keeps a clock of each node for each process.
inline constexpr size_t kMostClocks = size_t{1} << 26;
// As a key of the exchange.
inline constexpr size_t kMostNameBytes = 255;

// A place where nodes run, one after the other.
struct Process {
  std::string name;
  std::string host;           // processes of the same host can map each other's memory
  uint64_t memory_bytes = 0;  // most memory of a plan; 0: no limit
};

struct Node {
  std::string name;
  uint32_t process = 0;
  std::string device = "cpu";  // "cpu", or "cuda:N"
  std::string op;              // for the program that runs it; the pass does not look at it
  // An output may be written over an input of the same size that nobody reads any more.
  bool in_place = false;
  double compute_us = 0;       // processor time apart from memory traffic
  uint64_t touched_bytes = 0;  // read and written by the processor
};

// One tensor of each step, with its readers. A control edge only orders two nodes of a process.
struct Edge {
  std::string name;
  uint32_t from = 0;         // node
  std::vector<uint32_t> to;  // nodes
  DataType dtype = float32;
  std::vector<int64_t> shape;  // elements by dimension
  uint64_t bytes = 0;          // of one tensor; set by validate()
  // 1: what a step makes is read in the next one. Before step 0 the program supplies it.
  uint32_t delay = 0;
  bool control = false;
};

struct Graph {
  std::string name;
  std::vector<Process> processes;
  std::vector<Node> nodes;
  std::vector<Edge> edges;
};

// Fills in Edge::bytes and says whether the graph can be planned.
// Errors: kInvalidArgument, with the names of what is wrong and what to change: an empty graph, too
// many parts, empty, long or duplicate names, numbers that name nobody, no readers, a reader named
// twice, unknown dtypes, shapes that overflow, unknown devices, delays above 1, control edges
// between processes, cycles among edges without delay.
Status validate(Graph& graph);

// The nodes in an order in which each comes after what it reads; of those that may be next the one
// that comes first in the graph. Shorter than the graph's list if there is a cycle.
std::vector<uint32_t> order_of(const Graph& graph);

// "float32", "bfloat16", "int8" and so on, without lanes. Errors: kInvalidArgument.
Result<DataType> dtype_named(const std::string& name);

}  // namespace sluice::graph

#endif  // SLUICE_GRAPH_GRAPH_H_
