#include <catch2/catch.hpp>

#include <vector>

#include "tools/tune/choose.h"

namespace sluice::tools {
namespace {

const std::vector<uint64_t> kCandidates{1 << 10, 4 << 10, 16 << 10, 64 << 10};

TEST_CASE("the threshold lies where the two ways cross", "[tune]") {
  std::vector<SizeTimes> sizes{
      {1 << 10, 10, 20}, {4 << 10, 15, 20}, {16 << 10, 30, 20}, {64 << 10, 90, 20}};
  CHECK(choose_threshold(sizes, kCandidates, true, 64 << 10).bytes == 4 << 10);
  // The other way round: what is at the threshold is done as what lies above.
  CHECK(choose_threshold(sizes, kCandidates, false, 64 << 10).bytes == 16 << 10);
}

TEST_CASE("a difference within the noise moves nothing", "[tune]") {
  std::vector<SizeTimes> sizes{
      {1 << 10, 10, 20}, {4 << 10, 15, 20}, {16 << 10, 20.4, 20}, {64 << 10, 90, 20}};
  CHECK(choose_threshold(sizes, kCandidates, true, 16 << 10).bytes == 16 << 10);
  CHECK(choose_threshold(sizes, kCandidates, true, 16 << 10).worst == Approx(1.02));
}

TEST_CASE("where the ways cross twice the least worst cost decides", "[tune]") {
  std::vector<SizeTimes> sizes{
      {1 << 10, 10, 11}, {4 << 10, 12, 10}, {16 << 10, 10, 30}, {64 << 10, 90, 20}};
  Choice choice = choose_threshold(sizes, kCandidates, true, 1 << 10);
  CHECK(choice.bytes == 16 << 10);
  CHECK(choice.worst == Approx(1.2));
}

TEST_CASE("sizes that were not measured decide nothing", "[tune]") {
  std::vector<SizeTimes> sizes{{1 << 10, 0, 0}, {4 << 10, 0, 0}};
  CHECK(choose_threshold(sizes, kCandidates, true, 16 << 10).bytes == 16 << 10);
}

// Pairs whose ratios lie evenly between two values.
PairedTimes pairs(uint64_t bytes, double from, double to, size_t count = 9) {
  PairedTimes made{.bytes = bytes, .ratios = {}};
  for (size_t i = 0; i < count; ++i)
    made.ratios.push_back(from +
                          (to - from) * static_cast<double>(i) / static_cast<double>(count - 1));
  return made;
}
constexpr uint64_t kUsual = 32 << 20, kNever = uint64_t{1} << 40;

uint64_t reach_of(const std::vector<PairedTimes>& in_place,
                  const std::vector<PairedTimes>& elsewhere) {
  return choose_reach(in_place, elsewhere, kUsual, kNever);
}

TEST_CASE(
    "copies go past the caches from the size on from which that is clearly faster at every size",
    "[tune]") {
  std::vector<PairedTimes> elsewhere{pairs(1 << 20, 1.4, 1.6)};
  CHECK(reach_of({pairs(1 << 20, 0.5, 0.6), pairs(4 << 20, 1.1, 1.2), pairs(16 << 20, 1.2, 1.4)},
                 elsewhere) == 4 << 20);
  // A size in the middle that seems to gain decides nothing: one above it does not.
  CHECK(reach_of({pairs(1 << 20, 1.1, 1.2), pairs(4 << 20, 0.9, 1.2), pairs(16 << 20, 1.2, 1.4)},
                 elsewhere) == 16 << 20);
  CHECK(reach_of({pairs(1 << 20, 1.1, 1.2), pairs(4 << 20, 1.1, 1.2)}, elsewhere) == 1 << 20);
}

TEST_CASE("a gain that some pairs have and others have not leaves the default", "[tune]") {
  std::vector<PairedTimes> clear{pairs(1 << 20, 1.4, 1.6)}, vague{pairs(1 << 20, 0.8, 1.2)};
  CHECK(reach_of({pairs(16 << 20, 0.7, 1.9)}, clear) == kUsual);
  CHECK(reach_of({pairs(16 << 20, 0.7, 1.9)}, vague) == kUsual);
  CHECK(reach_of({pairs(16 << 20, 1.01, 1.02)}, vague) == kUsual);
  CHECK(reach_of({pairs(16 << 20, 1.1, 1.2)}, vague) == 16 << 20);
}

TEST_CASE("no copy goes past the caches where that is a loss elsewhere", "[tune]") {
  std::vector<PairedTimes> gain{pairs(16 << 20, 1.1, 1.2)}, clear{pairs(1 << 20, 1.4, 1.6)};
  CHECK(reach_of(gain, {clear[0], pairs(8 << 20, 0.7, 0.9)}) == kNever);
}

TEST_CASE("what was hardly measured leaves the default", "[tune]") {
  std::vector<PairedTimes> gain{pairs(16 << 20, 1.1, 1.2)}, clear{pairs(1 << 20, 1.4, 1.6)};
  CHECK(reach_of({pairs(16 << 20, 1.1, 1.2, kFewestPairs - 1)}, clear) == kUsual);
  CHECK(reach_of({pairs(16 << 20, 1.1, 1.2, kFewestPairs)}, clear) == 16 << 20);
  CHECK(reach_of(gain, {pairs(1 << 20, 1.4, 1.6, kFewestPairs - 1)}) == kUsual);
}

TEST_CASE("one pair in four that was disturbed changes nothing", "[tune]") {
  PairedTimes disturbed = pairs(16 << 20, 1.2, 1.3, 12);
  for (size_t i = 0; i < 3; ++i) disturbed.ratios[i] = i == 0 ? 20 : 0.05;
  CHECK(reach_of({disturbed}, {pairs(1 << 20, 1.4, 1.6)}) == 16 << 20);
}

TEST_CASE("the spin budget follows the wake-up, within bounds and in whole steps", "[tune]") {
  CHECK(spin_budget_ns(0) == 10'000);
  CHECK(spin_budget_ns(24'000) == 60'000);
  CHECK(spin_budget_ns(24'900) == 60'000);
  CHECK(spin_budget_ns(1e9) == 200'000);
}

TEST_CASE("a typical time is not that of the interrupted samples, and a few samples are none",
          "[tune]") {
  std::vector<double> samples(12, 5.0);
  for (size_t i = 0; i < 8; ++i) samples[i] = 1e6;
  CHECK(typical(samples) == 5);
  samples.pop_back();
  CHECK(typical(samples) == 0);
}

TEST_CASE(
    "of fixed values the fastest is taken, and the usual one where the noise is larger than the "
    "difference",
    "[tune]") {
  CHECK(choose_value({{8, 30}, {32, 20}, {92, 25}}, 92) == 32);
  CHECK(choose_value({{8, 30}, {32, 20}, {92, 20.5}}, 92) == 92);
  CHECK(choose_value({{8, 30}, {32, 20}}, 92) == 32);
  CHECK(choose_value({{8, 30}, {32, 0}, {92, 25}}, 92) == 92);
  CHECK(choose_value({}, 92) == 92);
  CHECK(costs_text({{8, 30}, {32, 20}, {92, 25}}) == "8 1.50, 32 1.00, 92 1.25");
  CHECK(costs_text({{8, 30}, {32, 0}}).empty());
  CHECK(costs_text({}).empty());
}

TEST_CASE("the ratios of what was measured are told", "[tune]") {
  CHECK(ratios_text(std::vector<PairedTimes>{{256 << 10, {3, 1, 2}}, {1 << 20, {}}}) ==
        "256K 2.00");
  CHECK(ratios_text(std::vector<SizeTimes>{
            {256, 1, 1}, {1 << 10, 1, 2}, {2 << 10, 0, 1}, {4 << 20, 3, 2}}) ==
        "256 1.00, 1K 0.50, 4M 1.50");
}

}  // namespace
}  // namespace sluice::tools
