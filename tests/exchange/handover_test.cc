// Each loan of a hand-over comes home.
#include <optional>
#include <vector>

#include "tests/exchange/exchanges.h"

namespace sluice::test {
namespace {

TEST_CASE("views go home whether a request follows them or not", "[exchange]") {
  NothingLeftBehind audit;
  Exchanges both;
  for (bool asks_again : {false, true}) {
    std::vector<Tensor> views;
    std::vector<Publication> publications;
    const uint64_t first = asks_again ? 100 : 0;
    for (uint64_t step = first; step < first + 5; ++step) {
      Fetch fetch = both.there.fetch({"w", step}, soon());
      auto publication = both.here.publish({"w", step}, both.four_floats());
      REQUIRE(publication.ok());
      publications.push_back(std::move(*publication));
      REQUIRE(both.pair.until([&] { return fetch.ready(); }));
      views.push_back(std::move(fetch.take()->value));
    }
    both.pair.settle();
    for (const Publication& publication : publications) CHECK_FALSE(publication.ready());
    views.clear();
    std::optional<Fetch> next;
    if (asks_again) next.emplace(both.there.fetch({"w", 1000}, soon()));
    for (const Publication& publication : publications) {
      REQUIRE(both.pair.until([&] { return publication.ready(); }));
      CHECK(publication.readers_done() == 1);
    }
  }
}

TEST_CASE("a view that is dropped just before its endpoint closes goes home first", "[exchange]") {
  NothingLeftBehind audit;
  Pair pair;
  Exchange here{*pair.server_context};
  REQUIRE(here.add(pair.server).ok());
  std::optional<Publication> publication;
  {
    Exchange there{*pair.client_context};
    REQUIRE(there.add(pair.client).ok());
    Fetch fetch = there.fetch({"w", 1}, soon());
    auto published = here.publish({"w", 1}, floats(*pair.server_context, {4}, 1));
    REQUIRE(published.ok());
    publication.emplace(std::move(*published));
    REQUIRE(pair.until([&] { return fetch.ready(); }));
    auto delivery = fetch.take();
    REQUIRE(delivery.ok());
    delivery->value = Tensor();
  }
  pair.client.start_close();
  REQUIRE(pair.until([&] { return publication->ready(); }));
  CHECK(publication->readers_done() == 1);
}

}  // namespace
}  // namespace sluice::test
