// Fetches of the latest step: the newest of what any publisher has, or the next to come; the
// publishers publish, retire and die meanwhile.
#include <optional>

#include <sluice/exchange/exchange.h>

#include "tests/contract/pair.h"
#include "tests/contract/star.h"

namespace sluice::test {
namespace {

using namespace std::chrono_literals;

// The fetching program is in the middle of the star, its publishers around it.
struct Publishers : Star {
  explicit Publishers(int count) {
    for (int i = 0; i < count; ++i) join();
  }
  Publication publish(size_t which, uint64_t step,
                      const PublishOptions& options = {.readers = until_retired}) {
    Reader& by = readers[which];
    auto published = by.exchange->publish(
        {"w", step}, floats(*by.context, {1000}, static_cast<float>(1000 * which + step)), options);
    REQUIRE(published.ok());
    return std::move(*published);
  }
  Fetch fetch_latest(Instant deadline = soon(), const FetchOptions& options = {}) {
    return exchange->fetch({"w", kLatest}, deadline, options);
  }
  // The step that came, with the values of its publisher.
  uint64_t step_of(Fetch& fetch, size_t which) {
    auto got = take(fetch);
    INFO(got.status().to_string());
    REQUIRE(got.ok());
    CHECK(got->value.as<float>()[0] == static_cast<float>(1000 * which + got->step));
    return got->step;
  }
  Status failure_of(Fetch fetch) {
    auto got = take(fetch);
    REQUIRE_FALSE(got.ok());
    return got.status();
  }
};

bool says(const Status& status, std::string_view text) {
  return status.detail().find(text) != std::string_view::npos;
}

TEST_CASE("of several steps that are kept the newest is fetched, and its number comes with it",
          "[exchange][latest]") {
  NothingLeftBehind audit;
  Publishers scene(1);
  for (uint64_t step : {3, 9, 5}) (void)scene.publish(0, step);  // the largest, not the last
  Fetch fetch = scene.fetch_latest();
  CHECK(scene.step_of(fetch, 0) == 9);
  Fetch from = scene.fetch_latest(soon(), {.from = &scene.readers[0].far});
  CHECK(scene.step_of(from, 0) == 9);
  // A fetch by number says which it was, too.
  Fetch numbered = scene.exchange->fetch({"w", 5}, soon());
  CHECK(scene.step_of(numbered, 0) == 5);
}

TEST_CASE("the latest step fills a destination, on the path and in its own exchange",
          "[exchange][latest]") {
  NothingLeftBehind audit;
  Publishers scene(1);
  (void)scene.publish(0, 4);
  auto into = [&](Star::Reader* reader) {
    Context& context = reader != nullptr ? *reader->context : *scene.context;
    Exchange& exchange = reader != nullptr ? *reader->exchange : *scene.exchange;
    auto buffer = context.allocate({1000}, float32);
    REQUIRE(buffer.ok());
    FetchInto fetch = exchange.fetch_into({"w", kLatest}, std::move(*buffer), soon());
    REQUIRE(scene.until([&] { return fetch.ready(); }));
    Placed placed = fetch.take();
    INFO(placed.status().to_string());
    REQUIRE(placed.ok());
    CHECK(placed.value().value.as<float>()[999] == 4 + 999);
    return placed.value().step;
  };
  CHECK(into(nullptr) == 4);
  CHECK(into(&scene.readers[0]) == 4);
  // One that does not fit comes back, with the shape that was published.
  auto small = scene.context->allocate({10}, float32);
  FetchInto fetch = scene.exchange->fetch_into({"w", kLatest}, std::move(*small), soon());
  REQUIRE(scene.until([&] { return fetch.ready(); }));
  Placed placed = fetch.take();
  CHECK(placed.code() == Code::kInvalidArgument);
  CHECK(says(placed.status(), "float32[1000]"));
  CHECK(placed.take_buffer());
}

TEST_CASE("without a step the fetch waits for the first that is published", "[exchange][latest]") {
  for (int publishers : {0, 1, 3}) {
    INFO(publishers);
    NothingLeftBehind audit;
    Publishers scene(publishers);
    Fetch fetch = scene.fetch_latest();
    scene.settle();
    CHECK_FALSE(fetch.ready());
    if (publishers == 0) scene.join();  // a publisher that comes while the fetch waits
    if (publishers == 3) scene.join();
    const size_t last = scene.readers.size() - 1;
    (void)scene.publish(last, 17);
    CHECK(scene.step_of(fetch, last) == 17);
  }
}

TEST_CASE("the newest of several publishers and of its own is fetched", "[exchange][latest]") {
  NothingLeftBehind audit;
  Publishers scene(3);
  (void)scene.publish(0, 3);
  (void)scene.publish(1, 8);
  auto own = [&](uint64_t step) {
    auto published = scene.exchange->publish(
        {"w", step}, floats(*scene.context, {1000}, static_cast<float>(2000 + step)),
        {.readers = until_retired});
    REQUIRE(published.ok());
  };
  Fetch of_a_peer = scene.fetch_latest();
  CHECK(scene.step_of(of_a_peer, 1) == 8);
  // Who supplied it last is not the only one to be asked.
  (void)scene.publish(0, 9);
  Fetch of_another = scene.fetch_latest();
  CHECK(scene.step_of(of_another, 0) == 9);
  own(10);
  Fetch here = scene.fetch_latest();
  CHECK(scene.step_of(here, 2) == 10);
  Fetch asked_of_one = scene.fetch_latest(soon(), {.from = &scene.readers[1].far});
  CHECK(scene.step_of(asked_of_one, 1) == 8);
}

TEST_CASE("while steps are published and retired, fetches give steps that never go back",
          "[exchange][latest]") {
  NothingLeftBehind audit;
  Publishers scene(2);
  uint64_t last = 0, published = 0;
  for (int round = 0; round < 50; ++round) {
    Fetch fetch = scene.fetch_latest();
    // A turn between each question, answer and retirement, at another place each round.
    for (int turn = 0; !fetch.ready() && turn < 2000; ++turn) {
      if (turn % (1 + round % 5) == 0 && published < last + 40)
        (void)scene.publish(0, ++published, {.readers = until_retired, .keep_steps = 0});
      scene.context->progress();
      for (Star::Reader& reader : scene.readers) reader.context->progress();
    }
    const uint64_t step = scene.step_of(fetch, 0);
    CHECK(step >= last);
    CHECK(step <= published);
    last = step;
  }
  CHECK(last > 1);
}

TEST_CASE("a step whose readers have all places is not the latest that can be had",
          "[exchange][latest]") {
  NothingLeftBehind audit;
  Publishers scene(1);
  (void)scene.publish(0, 1);
  Publication one_reader = scene.publish(0, 2, {.readers = 1});
  Fetch first = scene.fetch_latest();
  auto held = scene.take(first);
  REQUIRE(held.ok());
  CHECK(held->step == 2);
  Fetch second = scene.fetch_latest();
  CHECK(scene.step_of(second, 0) == 1);
  // Its own program's fetch takes a place, and those that wait get what comes next.
  held->value = Tensor();
  CHECK(scene.until([&] { return one_reader.ready(); }));
}

TEST_CASE("a publisher that dies leaves the fetch to the others, or ends it",
          "[exchange][latest]") {
  NothingLeftBehind audit;
  SECTION("while the fetch waits") {
    Publishers scene(2);
    Fetch fetch = scene.fetch_latest();
    scene.settle();
    scene.leave(scene.readers[0]);
    CHECK_FALSE(fetch.ready());
    (void)scene.publish(1, 2);
    CHECK(scene.step_of(fetch, 1) == 2);
  }
  SECTION("with the newest step") {
    Publishers scene(2);
    (void)scene.publish(0, 9);
    (void)scene.publish(1, 2);
    Fetch before = scene.fetch_latest();
    CHECK(scene.step_of(before, 0) == 9);
    Fetch during = scene.fetch_latest();
    // It has told its step, and is gone before it is asked for the tensor.
    scene.readers[0].context->progress();
    scene.leave(scene.readers[0]);
    auto got = scene.take(during);
    INFO(got.status().to_string());
    REQUIRE(got.ok());
    CHECK((got->step == 9 || got->step == 2));
    Fetch after = scene.fetch_latest();
    CHECK(scene.step_of(after, 1) == 2);
  }
  SECTION("the only one") {
    Publishers scene(1);
    Fetch fetch = scene.fetch_latest();
    scene.settle();
    scene.leave(scene.readers[0]);
    CHECK(scene.failure_of(std::move(fetch)).code() == Code::kUnreachable);
  }
  SECTION("and comes back") {
    Publishers scene(1);
    (void)scene.publish(0, 5);
    Fetch fetch = scene.fetch_latest();
    CHECK(scene.step_of(fetch, 0) == 5);
    scene.leave(scene.readers[0]);
    Fetch waiting = scene.fetch_latest();
    scene.join();
    (void)scene.publish(1, 1);
    CHECK(scene.step_of(waiting, 1) == 1);
  }
}

TEST_CASE("nothing published until the deadline, a cancelled fetch, an endpoint that is removed",
          "[exchange][latest]") {
  for (int publishers : {1, 2}) {
    NothingLeftBehind audit;
    Publishers scene(publishers);
    Status late = scene.failure_of(scene.fetch_latest(in(20ms)));
    CHECK(late.code() == Code::kTimedOut);
    CHECK(says(late, "no step of 'w' was published before the deadline"));
    Fetch fetch = scene.fetch_latest();
    scene.settle();
    fetch.cancel();
    CHECK(scene.failure_of(std::move(fetch)).code() == Code::kCancelled);
    { Fetch dropped = scene.fetch_latest(); }
    Fetch removed = scene.fetch_latest(in(1s));
    scene.settle();
    scene.exchange->remove(scene.readers[0].far);
    scene.settle();
    if (publishers == 2) {
      (void)scene.publish(1, 3);
      CHECK(scene.step_of(removed, 1) == 3);
    } else {
      CHECK_FALSE(scene.failure_of(std::move(removed)).ok());
    }
  }
  Publishers none(0);
  Status alone = none.failure_of(none.fetch_latest(in(5ms)));
  CHECK(alone.code() == Code::kTimedOut);
  CHECK(says(alone, "the latest step of 'w': there was no endpoint to ask"));
}

TEST_CASE("a publisher that does not call progress is left out if another has a step",
          "[exchange][latest]") {
  NothingLeftBehind audit;
  Publishers scene(2);
  (void)scene.publish(0, 9);
  (void)scene.publish(1, 2);
  Fetch fetch = scene.fetch_latest();
  const Instant limit = soon();
  while (!fetch.ready() && now() < limit) {
    scene.context->progress();
    scene.readers[1].context->progress();
  }
  REQUIRE(fetch.ready());
  auto got = fetch.take();
  INFO(got.status().to_string());
  REQUIRE(got.ok());
  CHECK(got->step == 2);
}

TEST_CASE("rights hold for the latest step: the question, and the step that is fetched",
          "[exchange][latest]") {
  NothingLeftBehind audit;
  Star star;
  std::vector<uint64_t> asked;
  Star::Reader& strict = star.join();
  Exchange guarded(*strict.context, {.allow = [&](const EndpointInfo&, const Key& key, KeyAccess) {
    asked.push_back(key.step);
    return key.step != 7;
  }});
  strict.exchange->remove(strict.near);
  REQUIRE(guarded.add(strict.near).ok());
  auto publish = [&](uint64_t step) {
    auto published =
        guarded.publish({"w", step}, floats(*strict.context, {10}, 1), {.readers = until_retired});
    REQUIRE(published.ok());
  };
  publish(6);
  Fetch allowed = star.exchange->fetch({"w", kLatest}, soon());
  auto got = star.take(allowed);
  REQUIRE(got.ok());
  CHECK(asked == std::vector<uint64_t>{kLatest, 6});
  publish(7);
  Fetch denied = star.exchange->fetch({"w", kLatest}, soon());
  auto refused = star.take(denied);
  CHECK(refused.code() == Code::kAccessDenied);
  CHECK(says(refused.status(), "'w' step 7"));
}

TEST_CASE("the two numbers that stand for questions cannot be steps", "[exchange][latest]") {
  NothingLeftBehind audit;
  Publishers scene(1);
  for (uint64_t step : {kLatest, kLatest - 1}) {
    auto refused = scene.exchange->publish({"w", step}, floats(*scene.context, {4}, 1));
    CHECK(refused.code() == Code::kInvalidArgument);
    CHECK(says(refused.status(), "steps go up to"));
  }
  Fetch between = scene.exchange->fetch({"w", kLatest - 1}, soon());
  CHECK(scene.failure_of(std::move(between)).code() == Code::kInvalidArgument);
  (void)scene.publish(0, kLastStep);
  Fetch fetch = scene.fetch_latest();
  auto got = scene.take(fetch);
  REQUIRE(got.ok());
  CHECK(got->step == kLastStep);
}

}  // namespace
}  // namespace sluice::test
