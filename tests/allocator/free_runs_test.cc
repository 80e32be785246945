// Size classes and free ranges, against counting by hand.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <vector>

#include <sluice/allocator/free_runs.h>
#include <sluice/allocator/size_classes.h>

namespace sluice {
namespace {

TEST_CASE("every size fits its class and no smaller one") {
  std::mt19937_64 random(1);
  auto check = [](size_t bytes) {
    int c = class_of(bytes);
    REQUIRE(c >= 0);
    REQUIRE(c < kClassCount);
    REQUIRE(class_bytes(c) >= bytes);
    REQUIRE(class_bytes(c) % kClassGranule == 0);
    if (c > 0) REQUIRE(class_bytes(c - 1) < bytes);
  };
  for (size_t bytes = 0; bytes < 300'000; ++bytes) check(bytes);
  for (int bit = 18; bit <= 40; ++bit) {
    check((size_t{1} << bit) - 1);
    check(size_t{1} << bit);
    if (bit < 40) check((size_t{1} << bit) + 1);
  }
  for (int i = 0; i < 100'000; ++i) check(random() % (kLargestClassBytes + 1));
}

TEST_CASE("run lengths waste at most an eighth when small and a page when large") {
  for (size_t bytes = 2048; bytes < 2'000'000; bytes += 97) {
    size_t length = run_length(bytes);
    REQUIRE(length >= bytes);
    REQUIRE(length % kClassGranule == 0);
    REQUIRE(length - bytes < std::max<size_t>(bytes / 8 + kClassGranule, 4096));
    if (bytes > kSmallBytes) REQUIRE(length - bytes < 4096);
    REQUIRE(run_length(length) == length);
  }
}

TEST_CASE("free ranges against a map of units") {
  constexpr uint64_t kUnits = 256;
  std::mt19937_64 random(7);
  for (int round = 0; round < 50; ++round) {
    FreeRuns runs;
    std::vector<bool> free(kUnits, false);
    std::vector<std::pair<uint64_t, uint64_t>> taken;
    runs.add(0, kUnits);
    free.assign(kUnits, true);
    auto longest = [&] {
      uint64_t best = 0, now = 0;
      for (bool f : free) best = std::max(best, now = f ? now + 1 : 0);
      return best;
    };
    for (int step = 0; step < 400; ++step) {
      if (random() % 2 == 0) {
        uint64_t length = 1 + random() % 40;
        bool possible = longest() >= length;
        auto offset = runs.take(length);
        REQUIRE(offset.has_value() == possible);
        if (!offset) continue;
        for (uint64_t u = *offset; u < *offset + length; ++u) {
          REQUIRE(free[u]);
          free[u] = false;
        }
        taken.emplace_back(*offset, length);
      } else if (random() % 4 == 0) {
        uint64_t offset = random() % kUnits, length = 1 + random() % 10;
        if (offset + length > kUnits) continue;
        bool possible = std::all_of(free.begin() + static_cast<long>(offset),
                                    free.begin() + static_cast<long>(offset + length),
                                    [](bool f) { return f; });
        REQUIRE(runs.take_exactly(offset, length) == possible);
        if (!possible) continue;
        std::fill_n(free.begin() + static_cast<long>(offset), length, false);
        taken.emplace_back(offset, length);
      } else if (!taken.empty()) {
        std::swap(taken[random() % taken.size()], taken.back());
        auto [offset, length] = taken.back();
        taken.pop_back();
        runs.add(offset, length);
        std::fill_n(free.begin() + static_cast<long>(offset), length, true);
      }
      REQUIRE(runs.largest() == longest());
      REQUIRE(runs.total() == static_cast<uint64_t>(std::count(free.begin(), free.end(), true)));
      uint64_t at = random() % (kUnits + 1), before = 0;
      bool ends_here = at > 0 && free[at - 1] && (at == kUnits || !free[at]);
      while (ends_here && before < at && free[at - 1 - before]) ++before;
      REQUIRE(runs.length_before(at) == before);
    }
  }
}

}  // namespace
}  // namespace sluice
