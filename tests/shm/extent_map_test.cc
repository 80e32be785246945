// What a peer announced, against a map of single units that is too simple to be wrong.
#include <sluice/shm/extent_map.h>

#include <catch2/catch.hpp>

#include <array>
#include <random>
#include <vector>

namespace sluice::shm {
namespace {

constexpr uint64_t kUnits = 24;

// Who has each unit: 0 nobody, an id, or a rest (kRest and up: which one).
struct Units {
  static constexpr uint32_t kRest = 1u << 20;
  std::array<uint32_t, kUnits> at{};
  uint32_t rests = 0;

  void add(uint32_t id, uint64_t offset, uint64_t length) {
    for (uint64_t i = offset; i < offset + length; ++i) {
      uint32_t old = at[i];
      if (old == 0 || old == id) continue;
      // Both sides of what is left are rests of their own.
      uint32_t left = kRest + rests++, right = kRest + rests++;
      for (uint64_t k = 0; k < kUnits; ++k) {
        if (at[k] == old) at[k] = k < offset ? left : k >= offset + length ? right : 0;
      }
    }
    for (uint64_t i = offset; i < offset + length; ++i) at[i] = id;
  }
  uint64_t pieces() const {
    uint64_t count = 0;
    for (uint64_t i = 0; i < kUnits; ++i)
      count += at[i] != 0 && (i == 0 || at[i] != at[i - 1]) ? 1 : 0;
    return count;
  }
  bool covers(uint64_t offset, uint64_t length) const {
    for (uint64_t i = offset; i < offset + length; ++i) {
      if (i >= kUnits || at[i] == 0 || at[i] >= kRest) return false;
    }
    return true;
  }
  bool has(uint32_t id) const {
    for (uint32_t one : at) {
      if (one == id) return true;
    }
    return false;
  }
};

TEST_CASE("extents that lie over, beside and inside each other are as a map of single units says") {
  std::mt19937 random(14);
  for (int round = 0; round < 400; ++round) {
    ExtentMap map;
    Units units;
    for (uint32_t id = 1; id < 40; ++id) {
      uint64_t offset = random() % kUnits;
      uint64_t length = 1 + random() % std::min<uint64_t>(kUnits - offset, 1 + random() % kUnits);
      int64_t before = static_cast<int64_t>(map.pieces());
      int64_t more = map.pieces_added_by({offset, length});
      map.add(id, {offset, length});
      units.add(id, offset, length);
      REQUIRE(static_cast<int64_t>(map.pieces()) == before + more);
      REQUIRE(map.pieces() == units.pieces());
      uint64_t announced = 0;
      for (uint32_t one = 1; one <= id; ++one) {
        REQUIRE(map.contains(one) == units.has(one));
        if (map.find(one) != nullptr) announced += map.find(one)->length;
      }
      REQUIRE(map.announced_bytes() == announced);
      for (uint64_t start = 0; start < kUnits; ++start) {
        for (uint64_t run = 1; run <= kUnits; ++run)
          REQUIRE(map.covers(start, run) == units.covers(start, run));
      }
    }
  }
}

TEST_CASE("a run beyond every offset is not covered, whatever its length") {
  ExtentMap map;
  map.add(1, {4, 4});
  for (uint64_t length : {uint64_t{1}, UINT64_MAX, UINT64_MAX - 7}) {
    CHECK_FALSE(map.covers(8, length));
    CHECK_FALSE(map.covers(UINT64_MAX, length));
    CHECK_FALSE(map.covers(0, length));
  }
  CHECK_FALSE(map.covers(4, UINT64_MAX));
  CHECK(map.covers(4, 4));
}

}  // namespace
}  // namespace sluice::shm
