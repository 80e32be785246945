#include <sluice/base/counters.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <thread>
#include <vector>

namespace sluice {
namespace {

Counter apples("test.apples");
Counter pears("test.pears");

TEST_CASE("counters are found by name and add up over threads") {
  uint64_t before = read_counter("test.apples");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 10'000; ++i) apples.add();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(read_counter("test.apples") == before + 40'000);
  pears.add(5);
  CHECK(pears.value() == 5);
  CHECK(read_counter("test.nothing") == 0);
}

TEST_CASE("all counters are listed in the order of their names") {
  auto all = read_counters();
  CHECK(std::is_sorted(all.begin(), all.end()));
  auto named = [&](std::string_view name) {
    return std::count_if(all.begin(), all.end(), [&](const auto& c) { return c.first == name; });
  };
  CHECK(named("test.apples") == 1);
  CHECK(named("test.pears") == 1);
}

}  // namespace
}  // namespace sluice
