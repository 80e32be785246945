// A publication has as many readers as it says, wherever they are: a fetch in the publisher's own
// exchange and a peer's are counted alike, those that have the tensor and those that are getting
// it.
#include "tests/contract/pair.h"

#include <optional>

#include <sluice/exchange/exchange.h>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;

// A publisher and a peer; the publisher's own program fetches, too.
struct Scene {
  Pair pair;
  Exchange here{*pair.server_context}, there{*pair.client_context};
  Scene() {
    REQUIRE(here.add(pair.server).ok());
    REQUIRE(there.add(pair.client).ok());
  }
  Publication publish(int readers) {
    auto published =
        here.publish({"w", 1}, floats(*pair.server_context, {50'000}, 1), {.readers = readers});
    REQUIRE(published.ok());
    return std::move(*published);
  }
  // Delivered, or ended as the text of a step that is over says. Waits for it.
  bool delivered(Fetch& fetch) {
    REQUIRE(pair.until([&] { return fetch.ready(); }));
    auto taken = fetch.take();
    if (!taken.ok()) CHECK((taken.code() == Code::kWrongState || taken.code() == Code::kTimedOut));
    if (taken.ok()) CHECK(taken->value.as<float>()[49'999] == 50'000);
    return taken.ok();
  }
};

TEST_CASE("a place that is lent to a peer is not given to a local fetch", "[exchange]") {
  NothingLeftBehind audit;
  Scene scene;
  Publication publication = scene.publish(1);
  Fetch theirs = scene.there.fetch({"w", 1}, soon());
  REQUIRE(scene.pair.until([&] { return scene.pair.server.counters().posted > 0; }));
  // Where the path has views it stays lent until the peer drops it; elsewhere it may be over by
  // now.
  bool lent = publication.readers_done() == 0;
  if (path_has_views()) REQUIRE(lent);
  Fetch ours = scene.here.fetch({"w", 1}, in(200ms));
  if (lent) CHECK_FALSE(ours.ready());
  CHECK(publication.readers_done() == (lent ? 0 : 1));
  CHECK(scene.delivered(theirs));
  CHECK(scene.pair.until([&] { return publication.ready(); }));
  CHECK(publication.readers_done() == 1);
  CHECK_FALSE(scene.delivered(ours));
}

TEST_CASE("a place that a local fetch has taken is not lent to a peer", "[exchange]") {
  NothingLeftBehind audit;
  Scene scene;
  Publication publication = scene.publish(1);
  Fetch ours = scene.here.fetch({"w", 1}, soon());
  CHECK(ours.ready());
  CHECK(publication.readers_done() == 1);
  Fetch theirs = scene.there.fetch({"w", 1}, soon());
  CHECK_FALSE(scene.delivered(theirs));
  CHECK(scene.delivered(ours));
}

TEST_CASE("who waits for a place is told when the publication ends before there is one",
          "[exchange]") {
  if (!path_has_views()) return;  // elsewhere nobody holds a place for long
  NothingLeftBehind audit;
  Scene scene;
  Publication publication = scene.publish(1);
  Fetch first = scene.there.fetch({"w", 1}, soon());
  REQUIRE(scene.pair.until([&] { return first.ready(); }));
  auto held = first.take();  // and with it the only place
  REQUIRE(held.ok());
  Fetch second = scene.there.fetch({"w", 1}, soon());
  scene.pair.settle();
  REQUIRE_FALSE(second.ready());
  publication.retire();
  REQUIRE(scene.pair.until([&] { return second.ready(); }, in(5s)));
  CHECK(second.take().status().code() == Code::kWrongState);
}

TEST_CASE("of two publications with a deadline each ends by its own", "[exchange]") {
  NothingLeftBehind audit;
  Scene scene;
  auto until = [&](uint64_t step, Instant deadline) {
    auto published = scene.here.publish({"w", step}, floats(*scene.pair.server_context, {10}, 1),
                                        {.readers = until_retired, .deadline = deadline});
    REQUIRE(published.ok());
    return std::move(*published);
  };
  Publication later = until(1, in(60ms)), sooner = until(2, in(20ms));
  CHECK(scene.pair.until([&] { return sooner.ready(); }, in(5s)));
  CHECK(scene.pair.until([&] { return later.ready(); }, in(5s)));
}

TEST_CASE("of two that wait for one place, one gets it, whoever asked first", "[exchange]") {
  for (bool local_first : {true, false}) {
    INFO("local first " << local_first);
    NothingLeftBehind audit;
    Scene scene;
    std::optional<Fetch> ours, theirs;
    if (local_first) ours.emplace(scene.here.fetch({"w", 1}, in(1s)));
    theirs.emplace(scene.there.fetch({"w", 1}, in(1s)));
    scene.pair.settle();
    if (!local_first) ours.emplace(scene.here.fetch({"w", 1}, in(1s)));
    Publication publication = scene.publish(1);
    int delivered = (scene.delivered(*ours) ? 1 : 0) + (scene.delivered(*theirs) ? 1 : 0);
    CHECK(delivered == 1);
    CHECK(scene.pair.until([&] { return publication.ready(); }));
    CHECK(publication.readers_done() == 1);
  }
}

TEST_CASE("both of two places go out, one to a peer and one here, in either order", "[exchange]") {
  for (bool local_first : {true, false}) {
    INFO("local first " << local_first);
    NothingLeftBehind audit;
    Scene scene;
    Publication publication = scene.publish(2);
    std::optional<Fetch> ours, theirs;
    if (local_first) ours.emplace(scene.here.fetch({"w", 1}, soon()));
    theirs.emplace(scene.there.fetch({"w", 1}, soon()));
    if (!local_first) {
      scene.pair.settle();
      ours.emplace(scene.here.fetch({"w", 1}, soon()));
    }
    CHECK(scene.delivered(*ours));
    CHECK(scene.delivered(*theirs));
    CHECK(scene.pair.until([&] { return publication.ready(); }));
    CHECK(publication.readers_done() == 2);
  }
}

}  // namespace
}  // namespace sluice::test
