// Shared memory: a tensor reaches the program before what came behind it is read.
#include "tests/contract/pair.h"

#include <sluice/exchange/exchange.h>

namespace sluice::test {
namespace {

TEST_CASE("a tensor that has come ends the turn: what came behind it waits", "[exchange]") {
  NothingLeftBehind audit;
  Pair pair;
  Exchange here{*pair.server_context}, there{*pair.client_context};
  REQUIRE(here.add(pair.server).ok());
  REQUIRE(there.add(pair.client).ok());
  Fetch first = there.fetch({"w", 0}, soon()), second = there.fetch({"w", 1}, soon());
  pair.settle();
  pair.part();
  auto zero = here.publish({"w", 0}, floats(*pair.server_context, {4}, 1));
  auto one = here.publish({"w", 1}, floats(*pair.server_context, {4}, 1));
  REQUIRE((zero.ok() && one.ok()));
  while (!first.ready()) REQUIRE(pair.client_context->progress() < 1000);
  CHECK_FALSE(second.ready());
  while (!second.ready()) REQUIRE(pair.client_context->progress() < 1000);
  pair.meet();
}

}  // namespace
}  // namespace sluice::test
