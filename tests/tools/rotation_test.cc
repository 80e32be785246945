#include <catch2/catch.hpp>

#include <set>
#include <span>
#include <vector>

#include <sluice/select/open.h>

#include "tools/perf/load/rotation.h"

namespace sluice::tools {
namespace {

TEST_CASE("tensors of any size rotate over two extents or more, and neighbours differ",
          "[rotation]") {
  auto context = open_context();
  REQUIRE(context.ok());
  Arena& arena = (*context)->arena();
  for (uint64_t size : {uint64_t{2}, uint64_t{64}, uint64_t{4096}, uint64_t{300'000},
                        uint64_t{8} << 20, uint64_t{48} << 20}) {
    CAPTURE(size);
    auto buffers = allocate_over_extents(arena, size, 8);
    REQUIRE(buffers.ok());
    REQUIRE(buffers->size() == 8);
    std::set<ExtentId> extents;
    for (Buffer& buffer : *buffers) {
      CHECK(buffer.size_bytes() == size);
      extents.insert(arena.locate(buffer.data(), size)->first.id);
    }
    CHECK(extents.size() >= 2);
    CHECK(arena.locate((*buffers)[0].data(), size)->first.id !=
          arena.locate((*buffers)[1].data(), size)->first.id);
  }
  // What was taken to fill an extent up is free again.
  CHECK(arena.statistics().outstanding == 0);
}

TEST_CASE("a rotation knows which tensors are the first of their extent", "[rotation]") {
  auto context = open_context();
  REQUIRE(context.ok());
  Rotation rotation;
  REQUIRE(rotation.allocate((*context)->arena(), 64, 8).ok());
  REQUIRE(rotation.first_of_extent().size() >= 2);
  CHECK(rotation.first_of_extent()[0] == 0);
  CHECK(rotation.first_of_extent()[1] == 1);
}

// Step 1 takes the second tensor, and the last step the first one: that may be the only one of its
// extent.
TEST_CASE("the first steps of an extent are told in the order of steps", "[rotation]") {
  for (uint64_t size : {uint64_t{64}, uint64_t{3} << 20, uint64_t{5} << 20, uint64_t{20} << 20}) {
    for (uint32_t count : {2u, 3u, 5u, 8u}) {
      CAPTURE(size, count);
      auto context = open_context();
      REQUIRE(context.ok());
      Arena& arena = (*context)->arena();
      Rotation rotation;
      REQUIRE(rotation.allocate(arena, size, count).ok());
      std::vector<uint32_t> expected;
      std::set<ExtentId> seen;
      for (uint32_t i = 0; i < count; ++i) {
        Tensor tensor = rotation.frozen(1 + i);
        if (seen.insert(arena.locate(tensor.data(), size)->first.id).second) expected.push_back(i);
      }
      std::span<const uint32_t> told = rotation.first_of_extent();
      CHECK(std::vector<uint32_t>(told.begin(), told.end()) == expected);
    }
  }
}

}  // namespace
}  // namespace sluice::tools
