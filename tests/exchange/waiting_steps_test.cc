// Lists of waiting requests, by step: whatever order peers choose, against an ordinary map.
#include <sluice/exchange/waiting_steps.h>

#include <catch2/catch.hpp>

#include <map>
#include <random>

namespace sluice::internal {

struct WaitingWant {
  uint64_t step = 0;
};

namespace {

constexpr size_t kSpares = 3;

// Lists of one request each, and what they ought to be.
struct Lists {
  WaitingSteps steps;
  WaitingSteps::Spares spares;
  std::map<uint64_t, WantList*> expected;
  std::map<uint64_t, WaitingWant> wants;

  void add(uint64_t step) {
    WaitingWant& want = wants[step] = {step};
    WantList* list = steps.find_or_make(step, spares);
    CHECK(list->first == nullptr);
    list->first = list->last = &want;
    expected[step] = list;
  }
  void end(uint64_t step) {
    WantList* list = expected.at(step);
    list->first = list->last = nullptr;
    steps.end(list, step, spares, kSpares);
    expected.erase(step);
    wants.erase(step);
  }
  void check(uint64_t limit) {
    CHECK(steps.empty() == expected.empty());
    for (const auto& [step, list] : expected) {
      REQUIRE(steps.find(step) == list);
      CHECK(list->first->step == step);
    }
    const std::optional<uint64_t> below = steps.any_below(limit);
    const bool any = !expected.empty() && expected.begin()->first < limit;
    REQUIRE(below.has_value() == any);
    if (any) CHECK((*below < limit && expected.count(*below) == 1));
    CHECK(spares.size() <= kSpares);
  }
};

TEST_CASE("a list of waiting requests is found by its step and nowhere else, near or far") {
  std::mt19937_64 random(7);
  Lists lists;
  for (int turn = 0; turn < 5'000; ++turn) {
    const uint64_t step = random() % 12;
    if (lists.expected.count(step) == 0) {
      CHECK(lists.steps.find(step) == nullptr);
      lists.add(step);
    } else {
      lists.end(step);
      CHECK(lists.steps.find(step) == nullptr);
    }
    lists.check(random() % 14);
  }
}

TEST_CASE("ending the lists below a step leaves those from it on") {
  Lists lists;
  for (uint64_t step = 20; step > 0; --step) lists.add(step);
  while (std::optional<uint64_t> low = lists.steps.any_below(15)) lists.end(*low);
  CHECK(lists.expected.size() == 6);
  lists.check(21);
}

}  // namespace
}  // namespace sluice::internal
