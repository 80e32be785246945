// Every fate of the first eight frames of one direction: delivered, lost, twice, or after
// the next one. Then all is well, and everything must arrive.
#include <catch2/catch.hpp>

#include "tests/slp/world.h"

namespace sluice::slp {

TEST_CASE("whatever happens to the first eight frames of one direction, all arrives", "[slp]") {
  static const char kFates[] = {'d', 'l', 't', 's'};
  uint64_t delivered = 0, transfers = 0;
  for (int from : {0, 1}) {
    for (uint32_t choice = 0; choice < 1u << 16; ++choice) {
      Plan plan;
      plan.seed = 11;
      plan.steps = 8;
      plan.span = kMillisecond;
      plan.first_fates_of = from;
      for (int i = 0; i < 8; ++i) plan.first_fates += kFates[choice >> 2 * i & 3];
      try {
        Summary summary = run(plan);
        delivered += summary.delivered;
        transfers += summary.transfers_ok;
        REQUIRE(summary.ended_sessions == 0);
        REQUIRE(summary.transfers_failed == 0);
      } catch (const Wrong& wrong) {
        FAIL("end " << from << ", fates " << plan.first_fates << ": " << wrong.what());
      }
    }
  }
  CHECK(delivered >= 4 * 2 * 65536);
  CHECK(transfers >= 2 * 65536);
}

}  // namespace sluice::slp
