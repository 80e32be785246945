// Very many fetches of what is not published yet: messages that no operation needs so far. They
// wait longer than others would, and all end.
#include "tests/contract/pair.h"

#include <string>
#include <vector>

#include <sluice/base/counters.h>
#include <sluice/exchange/exchange.h>

namespace sluice::test {
namespace {

constexpr uint64_t kFetches = 3000;

TEST_CASE("fetches that come long before their publications are held back, and all are served",
          "[exchange][fairness]") {
  NothingLeftBehind audit;
  const std::string held_back =
      path_under_test() == "tcp" ? "tcp.messages_held_back" : "l2.messages_held_back";
  Pair pair;
  Exchange here{*pair.server_context}, there{*pair.client_context};
  REQUIRE(here.add(pair.server).ok());
  REQUIRE(there.add(pair.client).ok());
  const uint64_t before = read_counter(held_back);
  std::vector<Fetch> fetches;
  for (uint64_t step = 1; step <= kFetches; ++step)
    fetches.push_back(there.fetch({"w", step}, soon()));
  REQUIRE(pair.until([&] { return read_counter(held_back) > before; }));
  pair.settle();
  std::vector<Publication> publications;
  for (uint64_t step = 1; step <= kFetches; ++step) {
    auto published = here.publish({"w", step}, floats(*pair.server_context, {4}, 1));
    REQUIRE(published.ok());
    publications.push_back(std::move(*published));
  }
  for (Fetch& fetch : fetches) {
    REQUIRE(pair.until([&] { return fetch.ready(); }));
    REQUIRE(fetch.take().ok());
  }
  for (Publication& publication : publications)
    REQUIRE(pair.until([&] { return publication.ready(); }));
}

}  // namespace
}  // namespace sluice::test
