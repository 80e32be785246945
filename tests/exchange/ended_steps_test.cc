// Steps that have ended: whatever order they end in, against an ordinary set.
#include <sluice/exchange/ended_steps.h>

#include <catch2/catch.hpp>

#include <random>
#include <set>

namespace sluice::internal {
namespace {

TEST_CASE("steps that end in order are all known", "[exchange]") {
  EndedSteps ended;
  CHECK_FALSE(ended.has(0));
  for (uint64_t step = 5; step < 100'000; ++step) ended.add(step);
  for (uint64_t step : {5ul, 6ul, 50'000ul, 99'999ul}) CHECK(ended.has(step));
  for (uint64_t step : {0ul, 4ul, 100'000ul}) CHECK_FALSE(ended.has(step));
}

TEST_CASE("steps that end in any order close up", "[exchange]") {
  std::mt19937_64 random(7);
  // Each of some hundred steps, in an order that is at most so far from theirs.
  const uint64_t astray = GENERATE(1u, 2u, 7u, 15u);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint64_t> order;
    for (uint64_t step = 3; step < 300; ++step) order.push_back(step);
    for (size_t from = 0; from < order.size(); from += astray + 1) {
      auto to = std::min(from + astray + 1, order.size());
      std::shuffle(order.begin() + from, order.begin() + to, random);
    }
    EndedSteps ended;
    std::set<uint64_t> expected;
    for (uint64_t step : order) {
      ended.add(step);
      expected.insert(step);
      for (uint64_t asked : {step, step - 1, step + 1, step - astray, order.front(), step / 2})
        if (ended.has(asked) != expected.contains(asked)) FAIL("step " << asked);
    }
  }
}

TEST_CASE("of too many runs of ended steps the lowest is forgotten", "[exchange]") {
  EndedSteps ended;
  for (uint64_t run = 1; run <= EndedSteps::kRuns; ++run) ended.add(10 * run);
  CHECK(ended.has(10));
  ended.add(3);  // lower than all
  CHECK_FALSE(ended.has(3));
  CHECK(ended.has(10));
  ended.add(1000);
  CHECK_FALSE(ended.has(10));
  CHECK(ended.has(20));
  ended.add(21);  // of a run that is there
  ended.add(25);  // of none: 20 and 21 go
  CHECK_FALSE(ended.has(20));
  CHECK_FALSE(ended.has(21));
  CHECK(ended.has(25));
  for (uint64_t run = 3; run <= EndedSteps::kRuns; ++run) CHECK(ended.has(10 * run));
  CHECK(ended.has(1000));
  // The same step twice is no run of its own.
  ended.add(40);
  CHECK(ended.has(25));
}

}  // namespace
}  // namespace sluice::internal
