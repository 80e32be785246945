// Shared memory: a tensor reaches the program before what came behind it is read.
#include "tests/exchange/exchanges.h"
#include "tests/support/single_turns.h"

namespace sluice::test {
namespace {

TEST_CASE("a tensor that has come ends the turn: what came behind it waits", "[exchange]") {
  NothingLeftBehind audit;
  Exchanges both;
  Pair& pair = both.pair;
  SingleTurns turns(*pair.client_context);
  bool one_by_one = true;
  uint64_t step = 0;
  // A machine that holds us up makes it a call of several turns: then once more.
  do {
    Fetch first = both.there.fetch({"w", step}, soon());
    Fetch second = both.there.fetch({"w", step + 1}, soon());
    pair.settle();
    pair.part();
    (void)turns.progress();
    auto zero = both.here.publish({"w", step}, both.four_floats());
    auto one = both.here.publish({"w", step + 1}, both.four_floats());
    REQUIRE((zero.ok() && one.ok()));
    one_by_one = true;
    for (const Instant end = soon(); !first.ready() && now() < end;)
      one_by_one = turns.progress() && one_by_one;
    REQUIRE(first.ready());
    if (one_by_one) CHECK_FALSE(second.ready());
    for (const Instant end = soon(); !second.ready() && now() < end;) turns.progress();
    REQUIRE(second.ready());
    pair.meet();
    step += 2;
  } while (!one_by_one && step < 40);
  CHECK(one_by_one);
}

}  // namespace
}  // namespace sluice::test
