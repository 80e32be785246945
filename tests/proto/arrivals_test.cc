// Bytes that come in any order, against a map of every byte.
#include <sluice/proto/arrivals.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

namespace sluice::proto {
namespace {

TEST_CASE("runs join where they touch, in whatever order they come", "[proto][arrivals]") {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    constexpr uint64_t kBytes = 256;
    const uint64_t first = random() % 20;
    Arrivals arrivals;
    arrivals.reset(first);
    std::vector<bool> there(kBytes);
    std::fill_n(there.begin(), first, true);
    uint64_t count = first;
    while (count < kBytes) {
      const uint64_t begin = random() % kBytes, end = begin + 1 + random() % (kBytes - begin);
      bool any = false;
      for (uint64_t i = begin; i < end; ++i) any = any || there[i];
      REQUIRE(arrivals.add(begin, end) == !any);
      // Small steps at the end, or the last gaps would never be met.
      if (any) {
        const uint64_t at =
            static_cast<uint64_t>(std::find(there.begin(), there.end(), false) - there.begin());
        REQUIRE(arrivals.add(at, at + 1));
        there[at] = true;
        ++count;
      } else {
        std::fill(there.begin() + static_cast<ptrdiff_t>(begin),
                  there.begin() + static_cast<ptrdiff_t>(end), true);
        count += end - begin;
      }
      size_t runs = there[0] ? 1 : 0;
      for (uint64_t i = 1; i < kBytes; ++i) runs += there[i] && !there[i - 1] ? 1 : 0;
      REQUIRE(arrivals.runs() == runs);
    }
    CHECK(arrivals.runs() == 1);
  }
}

}  // namespace
}  // namespace sluice::proto
