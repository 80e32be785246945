// How long a transfer takes where frames are lost by chance, in simulated time and in probes: a
// wait that doubles with each probe has to begin anew when something arrives.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdio>

#include "tests/slp/table.h"

namespace sluice::slp::table {
namespace {

constexpr uint64_t kBytes = 400 * SLP_UNIT_BYTES;

struct Took {
  uint64_t ns = 0, probes = 0;
};

// Of a pull or a push through a network that loses so many of a hundred frames, each way.
Took through(uint32_t lost_percent, bool pull, uint64_t seed) {
  Pair pair;
  uint32_t handle = pair.lend(1, kBytes, SLP_READ | SLP_WRITE);
  pair.client.memory[2].resize(kBytes);
  uint64_t chance = seed * 2 + 1;
  pair.pass = [&](bool, Frame&) {
    chance = chance * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
    return (chance >> 33) % 100 >= lost_percent;
  };
  const uint64_t begun = pair.now;
  REQUIRE((pull ? slp_pull(pair.client.session, handle, 0, kBytes, 2)
                : slp_push(pair.client.session, handle, 0, kBytes, 2, nullptr)) == SLP_OK);
  while (pair.client.ended.empty() && pair.now < begun + 200 * kSecond)
    pair.run(pair.now + kMillisecond);
  REQUIRE(pair.client.ended.size() == 1);
  CHECK(pair.client.ended[0].second == SLP_OK);
  return {pair.now - begun, slp_counters_of(pair.client.session)->probes +
                                slp_counters_of(pair.server.session)->probes};
}

}  // namespace

TEST_CASE("at each rate of loss a transfer ends within a bounded time and number of probes",
          "[slp][loss]") {
  struct Bound {
    uint32_t lost_percent;
    uint64_t ms, probes;
  };
  // Three times the worst of what these seeds take.
  for (Bound bound : {Bound{0, 3, 0}, Bound{1, 12, 5}, Bound{5, 24, 12}, Bound{10, 50, 40},
                      Bound{20, 120, 120}, Bound{30, 500, 320}, Bound{50, 10'000, 1100}}) {
    Took most;
    for (bool pull : {true, false}) {
      for (uint64_t seed = 1; seed <= 20; ++seed) {
        Took took = through(bound.lost_percent, pull, seed);
        most.ns = std::max(most.ns, took.ns);
        most.probes = std::max(most.probes, took.probes);
      }
    }
    std::printf("%u %% lost: at most %.1f ms, %llu probes\n", bound.lost_percent,
                static_cast<double>(most.ns) / 1e6, static_cast<unsigned long long>(most.probes));
    CHECK(most.ns <= bound.ms * kMillisecond);
    CHECK(most.probes <= bound.probes);
  }
}

}  // namespace sluice::slp::table
