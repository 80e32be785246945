// By system calls: libnuma would be a dependency for four of them.
#include <sluice/allocator/numa.h>

#include <errno.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace sluice {
namespace {

constexpr const char* kOrigin = "allocator/numa";
constexpr size_t kMostNodes = 1024;
constexpr size_t kBitsPerWord = 8 * sizeof(unsigned long);
using Mask = unsigned long[kMostNodes / kBitsPerWord];

Status bad_text(std::string_view text) {
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                "\"" + std::string(text) +
                    "\" is no place for an arena; use process, local, interleave or node:N");
}

std::string listed(std::span<const int> nodes) {
  std::string text;
  for (int node : nodes) text += (text.empty() ? "" : ", ") + std::to_string(node);
  return text;
}

// The calling thread's.
long set_policy(int mode, const unsigned long* mask) {
  return ::syscall(SYS_set_mempolicy, mode, mask, mask != nullptr ? kMostNodes : 0);
}

}  // namespace

Result<NumaPlacement> parse_numa(std::string_view text) {
  if (text == "process") return NumaPlacement{};
  if (text == "local") return NumaPlacement{.mode = NumaMode::kLocal};
  if (text == "interleave") return NumaPlacement{.mode = NumaMode::kInterleave};
  if (!text.starts_with("node:")) return bad_text(text);
  NumaPlacement placement{.mode = NumaMode::kNode};
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data() + 5, end, placement.node);
  if (error != std::errc() || rest != end || placement.node < 0) return bad_text(text);
  return placement;
}

std::string to_string(const NumaPlacement& placement) {
  switch (placement.mode) {
    case NumaMode::kProcess: return "process";
    case NumaMode::kLocal: return "local";
    case NumaMode::kInterleave: return "interleave";
    case NumaMode::kNode: return "node:" + std::to_string(placement.node);
  }
  return "place out of range";
}

Result<std::vector<int>> numa_nodes() {
  Mask mask = {};
  if (::syscall(SYS_get_mempolicy, nullptr, mask, kMostNodes, nullptr, MPOL_F_MEMS_ALLOWED) != 0) {
    const int error = errno;
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  error == ENOSYS
                      ? "this kernel has no NUMA; leave the arena's place to the process"
                      : "get_mempolicy() is forbidden here; run the container with --cap-add "
                        "SYS_NICE, or leave the arena's place to the process",
                  error);
  }
  std::vector<int> nodes;
  for (size_t node = 0; node < kMostNodes; ++node) {
    if ((mask[node / kBitsPerWord] >> (node % kBitsPerWord) & 1) != 0)
      nodes.push_back(static_cast<int>(node));
  }
  return nodes;
}

Status check_numa(const NumaPlacement& placement) {
  if (placement.mode == NumaMode::kProcess) return Status();
  SLUICE_TRY(std::vector<int> nodes, numa_nodes());
  if (placement.mode != NumaMode::kNode ||
      std::find(nodes.begin(), nodes.end(), placement.node) != nodes.end())
    return Status();
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                "there is no memory node " + std::to_string(placement.node) +
                    " that this process may use; there is " + listed(nodes) +
                    " (see `numactl --hardware`, `taskset`, the cgroup's cpuset.mems)");
}

OnNumaNode::OnNumaNode(const NumaPlacement& placement, std::span<const int> nodes, size_t index) {
  if (placement.mode == NumaMode::kProcess) return;
  if (::syscall(SYS_get_mempolicy, &old_mode_, old_mask_, kMostNodes, nullptr, 0) != 0) return;
  if (placement.mode == NumaMode::kLocal) {
    set_ = set_policy(MPOL_LOCAL, nullptr) == 0;
    return;
  }
  const bool one = placement.mode == NumaMode::kNode || nodes.empty();
  const auto node = static_cast<size_t>(one ? placement.node : nodes[index % nodes.size()]);
  if (node >= kMostNodes) return;
  Mask mask = {};
  mask[node / kBitsPerWord] = 1ul << (node % kBitsPerWord);
  // Not MPOL_BIND: a node without memory would call the OOM killer.
  set_ = set_policy(MPOL_PREFERRED, mask) == 0;
}

OnNumaNode::~OnNumaNode() {
  if (!set_) return;
  const bool empty = std::all_of(std::begin(old_mask_), std::end(old_mask_),
                                 [](unsigned long word) { return word == 0; });
  set_policy(old_mode_, empty ? nullptr : old_mask_);
}

std::vector<int> numa_nodes_of(std::span<const std::byte* const> pages) {
  std::vector<void*> addresses;
  for (const std::byte* page : pages) addresses.push_back(const_cast<std::byte*>(page));
  std::vector<int> nodes(pages.size(), -1);
  // Without nodes to move them to it only says where they are.
  const long asked =
      ::syscall(SYS_move_pages, 0, addresses.size(), addresses.data(), nullptr, nodes.data(), 0);
  for (int& node : nodes) node = asked != 0 || node < 0 ? -1 : node;
  return nodes;
}

}  // namespace sluice
