// On which memory nodes an arena lies. The whole answer needs a machine with two of them: the lab's
// guest (tests/lab). Here: what is refused, and that a policy of the thread is as before.
#include <sluice/allocator/numa.h>

#include <catch2/catch.hpp>

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/allocator/pending_allocation.h>

namespace sluice {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Nodes of the huge pages of `bytes` of fresh memory, and whether they were made in steps.
std::vector<int> nodes_of_fresh(NumaPlacement placement, size_t bytes, bool in_steps) {
  auto arena = Arena::create({.limit_bytes = 4 * bytes, .numa = placement});
  REQUIRE(arena.ok());
  Result<Buffer> buffer = Status(Code::kInternal, Scope::kOperation, "numa_test");
  if (in_steps) {
    auto pending = (*arena)->begin_allocate(bytes);
    while (!pending->ready()) pending->step();
    buffer = pending->take();
  } else {
    buffer = (*arena)->allocate(bytes);
  }
  REQUIRE(buffer.ok());
  std::vector<const std::byte*> pages;
  for (size_t at = 0; at < bytes; at += 2 * kMiB) pages.push_back(buffer->data() + at);
  return numa_nodes_of(pages);
}

TEST_CASE("a place of an arena is written as it is read") {
  for (std::string text : {"process", "local", "interleave", "node:0", "node:17"}) {
    auto placement = parse_numa(text);
    REQUIRE(placement.ok());
    CHECK(to_string(*placement) == text);
  }
  for (std::string text : {"", "node", "node:", "node:x", "node:-1", "node:1x", "all"}) {
    INFO(text);
    CHECK(parse_numa(text).code() == Code::kInvalidArgument);
  }
}

TEST_CASE("a memory node that is not there is refused, and the text names those that are") {
  auto arena = Arena::create({.numa = NumaPlacement{.mode = NumaMode::kNode, .node = 900}});
  REQUIRE_FALSE(arena.ok());
  const bool asked = numa_nodes().ok();
  CHECK(arena.code() == (asked ? Code::kInvalidArgument : Code::kUnsupported));
  if (asked) {
    CHECK(arena.status().to_string().find("no memory node 900") != std::string::npos);
    CHECK(arena.status().to_string().find(std::to_string(numa_nodes()->front())) !=
          std::string::npos);
  }
}

void check_places(const std::vector<int>& nodes) {
  for (bool in_steps : {false, true}) {
    for (int node : nodes) {
      for (int found : nodes_of_fresh({.mode = NumaMode::kNode, .node = node}, 96 * kMiB, in_steps))
        CHECK(found == node);
    }
    const std::vector<int> found =
        nodes_of_fresh({.mode = NumaMode::kInterleave}, 96 * kMiB, in_steps);
    for (size_t i = 0; i + 1 < found.size(); ++i)
      CHECK((found[i] != found[i + 1]) == (nodes.size() > 1));
    CHECK(nodes_of_fresh({.mode = NumaMode::kLocal}, 96 * kMiB, in_steps).front() >= 0);
  }
  int mode = -1;
  REQUIRE(::syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0);
  CHECK(mode == MPOL_DEFAULT);
}

TEST_CASE("pages lie where the arena's option says, in one piece and in steps") {
  Result<std::vector<int>> nodes = numa_nodes();
  if (nodes.ok()) check_places(*nodes);  // else the refusal is tested above
}

TEST_CASE("pages lie where the arena's option says on a machine with two memory nodes", "[.two]") {
  Result<std::vector<int>> nodes = numa_nodes();
  REQUIRE(nodes.ok());
  REQUIRE(*nodes == std::vector<int>{0, 1});
  check_places(*nodes);
}

}  // namespace
}  // namespace sluice
