#include <sluice/base/clock.h>

#include <catch2/catch.hpp>

namespace sluice {
namespace {

TEST_CASE("a deadline is counted from now, from a second on to two ticks", "[base][clock]") {
  for (Duration d : {Duration(0), Duration(1), Duration(999ms), Duration(1s), Duration(30s)}) {
    const bool coarse = d >= 1s;
    for (int i = 0; i < 10'000; ++i) {
      const Instant before = now();
      const Instant deadline = from_now(d);
      REQUIRE(deadline <= after(now(), d + (coarse ? 20ms : 0ms)));
      // The tick of a machine that is held up may be late.
      REQUIRE(deadline >= before + d - (coarse ? Duration(500ms) : Duration(0)));
    }
  }
}

TEST_CASE("a deadline after all time never comes", "[base][clock]") {
  CHECK(from_now(Duration::max()) == kNever);
  CHECK(from_now(Duration::max() - 1ns) == kNever);
}

}  // namespace
}  // namespace sluice
