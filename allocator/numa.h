// On which memory nodes (NUMA) the pages of an arena lie. Knows no arena.
#ifndef SLUICE_ALLOCATOR_NUMA_H_
#define SLUICE_ALLOCATOR_NUMA_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sluice/base/result.h>

namespace sluice {

enum class NumaMode : uint8_t {
  kProcess,  // as the process's own policy says (numactl): mostly that of the thread that allocates
  kLocal,    // the node of the thread that allocates
  kInterleave,  // huge page by huge page over all nodes that the process may use
  kNode,        // one node, as long as it has memory; then others
};

struct NumaPlacement {
  NumaMode mode = NumaMode::kProcess;
  int node = 0;  // of kNode
};

// "process", "local", "interleave", "node:N". Errors: kInvalidArgument.
Result<NumaPlacement> parse_numa(std::string_view text);
std::string to_string(const NumaPlacement& placement);

// Nodes with memory that this process may use, ascending. Errors: kUnsupported (a kernel without
// NUMA, a container that forbids to ask), with the remedy.
Result<std::vector<int>> numa_nodes();
// Whether the placement can be had. Errors: kInvalidArgument (no such node: the detail says which
// there are), kUnsupported.
Status check_numa(const NumaPlacement& placement);

// While it lives, pages that this thread populates come from where `placement` says. `index` is
// that of the piece of 2 MiB: kInterleave takes the nodes in turn.
// Thread: the one that made it. Cost: three system calls, none for kProcess.
class OnNumaNode {
 public:
  OnNumaNode(const NumaPlacement& placement, std::span<const int> nodes, size_t index);
  ~OnNumaNode();
  OnNumaNode(const OnNumaNode&) = delete;
  OnNumaNode& operator=(const OnNumaNode&) = delete;

 private:
  static constexpr size_t kMostNodes = 1024;  // of the kernel's masks
  bool set_ = false;
  int old_mode_ = 0;
  unsigned long old_mask_[kMostNodes / (8 * sizeof(unsigned long))] = {};
};

// The node of each page, -1 where that is not known. Requires: each address has a page.
std::vector<int> numa_nodes_of(std::span<const std::byte* const> pages);

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_NUMA_H_
