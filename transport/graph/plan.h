// What the pass decided: where each tensor of a graph is born, how it reaches its readers, when its
// memory is used again, and what each process does in a step. Values only.
#ifndef SLUICE_GRAPH_PLAN_H_
#define SLUICE_GRAPH_PLAN_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/graph/graph.h>

namespace sluice::graph {

inline constexpr uint32_t kNone = UINT32_MAX;

// How a tensor reaches a process that reads it.
enum class Route : uint8_t {
  kLocal,  // it is born there
  kView,   // another process of the host: its memory is mapped, nothing is copied
  kCross,  // another machine: the bytes are moved into memory of the reader
};
std::string_view to_string(Route route);

// Memory of one process. Tensors follow each other in it.
struct Slot {
  uint32_t process = 0;
  uint64_t bytes = 0;
  Audience audience = Audience::kNobody;  // kSameUser: peers of the host may map it
};

// One for each edge of the graph.
struct TensorPlan {
  // The tensor that is read in step s lies in slots[s % slots.size()]. Two or more where the next
  // one is made while readers of this one are left. None: a control edge.
  std::vector<uint32_t> slots;
  uint32_t in_place_of = kNone;  // the edge over whose tensor it is written
  uint32_t fetches = 0;          // processes other than its own that read it
};

// A tensor on its way to another process, once a step, whatever number of nodes reads it there.
struct Delivery {
  uint32_t edge = 0;
  uint32_t process = 0;  // that of the readers
  Route route = Route::kView;
  uint32_t slot = kNone;      // kCross: where the bytes go
  bool ahead = false;         // it is asked for as soon as the last step's has been read
  uint32_t first_reader = 0;  // node
  uint32_t last_reader = 0;   // node
};

enum class Action : uint8_t {
  kPost,     // delivery: ask for it
  kAwait,    // delivery: wait until it is here
  kClaim,    // edge: take the slot of its next tensor, once no reader of the last tenant is left
  kRun,      // node
  kPublish,  // edge: other processes may have it
  kRelease,  // delivery: its last reader has run
};
std::string_view to_string(Action action);

struct Instruction {
  Action action = Action::kRun;
  uint32_t subject = 0;
  bool operator==(const Instruction&) const = default;
};

struct ProcessPlan {
  // Before step 0: claims and publications of what the program supplies, and requests.
  std::vector<Instruction> start;
  // A kPost of a delivery that is ahead asks for the next step's.
  std::vector<Instruction> step;
  uint64_t bytes = 0;           // of its slots: the most it uses for tensors at any time
  uint64_t unshared_bytes = 0;  // what it would use if each tensor had memory of its own
};

struct Plan {
  Graph graph;
  std::vector<Slot> slots;
  std::vector<TensorPlan> tensors;  // by edge
  std::vector<Delivery> deliveries;
  std::vector<ProcessPlan> processes;

  uint32_t process_of(uint32_t edge) const { return graph.nodes[graph.edges[edge].from].process; }
};

}  // namespace sluice::graph

#endif  // SLUICE_GRAPH_PLAN_H_
