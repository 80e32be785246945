#include <catch2/catch.hpp>

#include <cstring>
#include <vector>

#include <sluice/select/open.h>

#include "tools/perf/run/conditions.h"

namespace sluice::tools {
namespace {

TEST_CASE("memory of any size is at the offset from a page that was asked for", "[conditions]") {
  auto context = open_context();
  REQUIRE(context.ok());
  for (uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{64}, uint64_t{4096}, uint64_t{300'000},
                         uint64_t{8} << 20}) {
    for (uint32_t offset : {0u, 1u, 63u, 256u, 4095u}) {
      CAPTURE(bytes, offset);
      auto buffer = allocate_at((*context)->arena(), bytes, offset);
      REQUIRE(buffer.ok());
      CHECK(buffer->size_bytes() == bytes);
      if (bytes == 0) continue;
      CHECK(reinterpret_cast<uintptr_t>(buffer->data()) % kPageBytes == offset);
      std::memset(buffer->data(), 0x5a, bytes);
      // As sent, as published and taken back, it stays there.
      std::byte* data = buffer->data();
      auto again = std::move(*buffer).freeze().try_thaw();
      REQUIRE(again.has_value());
      CHECK(again->data() == data);
    }
  }
  CHECK((*context)->arena().statistics().outstanding == 0);
}

TEST_CASE("what is taken out of the caches stays as it is, and each of its lines is named",
          "[conditions]") {
  if (!can_evict()) return;
  std::vector<std::byte> memory(10'000);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 7);
  const std::byte* data = memory.data() + 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
  CHECK(evict(data, 0) == 0);
  CHECK(evict(data, 1) == 64);
  CHECK(evict(data, 64) == 64);
  CHECK(evict(data + 63, 2) == 128);
  CHECK(evict(data + 1, 4096) == 4096 + 64);
  for (size_t i = 0; i < memory.size(); ++i)
    CHECK_FALSE(memory[i] != static_cast<std::byte>(i * 7));
}

TEST_CASE(
    "pauses are the same for the same seed, others for another, and spread evenly up to their "
    "bound",
    "[conditions]") {
  constexpr uint64_t kMost = 999;
  Pauses one(kMost, 7), same(kMost, 7), other(kMost, 8);
  size_t equal = 0;
  std::vector<size_t> tenths(10);
  for (int i = 0; i < 100'000; ++i) {
    uint64_t ns = one.next_ns();
    REQUIRE(ns <= kMost);
    REQUIRE(same.next_ns() == ns);
    if (other.next_ns() == ns) ++equal;
    ++tenths[ns / 100];
  }
  CHECK(equal < 300);  // of equal ones by chance: 100
  // Nine standard deviations about the tenth part.
  for (size_t count : tenths) CHECK((count > 9'150 && count < 10'850));
  CHECK_FALSE(static_cast<bool>(Pauses(0, 7)));
}

TEST_CASE("what a pause took is what it says it took", "[conditions]") {
  Pauses pauses(1000, 3), twin(1000, 3);
  uint64_t sum = 0, begin = ticks();
  for (int i = 0; i < 50; ++i) {
    pauses.pause();
    sum += twin.next_ns();
  }
  CHECK(pauses.paused_ns() == sum);
  // One tick may be lost to rounding in each.
  CHECK(static_cast<double>(ticks() - begin + 50) * nanoseconds_per_tick() >=
        static_cast<double>(sum));
}

}  // namespace
}  // namespace sluice::tools
