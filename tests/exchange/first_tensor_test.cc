// Shared memory: a tensor reaches the program before what came behind it is read.
#include "tests/exchange/exchanges.h"

namespace sluice::test {
namespace {

TEST_CASE("a tensor that has come ends the turn: what came behind it waits", "[exchange]") {
  NothingLeftBehind audit;
  Exchanges both;
  Pair& pair = both.pair;
  Fetch first = both.there.fetch({"w", 0}, soon()), second = both.there.fetch({"w", 1}, soon());
  pair.settle();
  pair.part();
  auto zero = both.here.publish({"w", 0}, both.four_floats());
  auto one = both.here.publish({"w", 1}, both.four_floats());
  REQUIRE((zero.ok() && one.ok()));
  while (!first.ready()) REQUIRE(pair.client_context->progress() < 1000);
  CHECK_FALSE(second.ready());
  while (!second.ready()) REQUIRE(pair.client_context->progress() < 1000);
  pair.meet();
}

}  // namespace
}  // namespace sluice::test
