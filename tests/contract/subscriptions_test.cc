// Subscriptions: every step of a name in order, over the path under test; steps that are retired,
// endpoints that come and go, and the ends of everything that a subscription stands on.
#include <chrono>
#include <coroutine>
#include <optional>
#include <vector>

#include <sluice/exchange/exchange.h>

#include "tests/contract/star.h"

namespace sluice::test {
namespace {

using namespace std::chrono_literals;

// A coroutine that nobody waits for.
struct Detached {
  struct promise_type {
    Detached get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::abort(); }
  };
};

// The publisher is in the middle, its subscribers around it.
struct Subscribed : Star {
  explicit Subscribed(int count = 1) {
    for (int i = 0; i < count; ++i) join();
  }
  Exchange& there(size_t which = 0) { return *readers[which].exchange; }
  Publication publish(uint64_t step, const PublishOptions& options = {}) {
    auto published =
        exchange->publish({"w", step}, floats(*context, {1000}, static_cast<float>(step)), options);
    INFO(published.status().to_string());
    REQUIRE(published.ok());
    return std::move(*published);
  }
  Result<Delivery<Tensor>> next(Subscription& subscription) {
    REQUIRE(until([&] { return subscription.ready(); }));
    return subscription.take();
  }
  // The next step, which has the values of its number.
  uint64_t step_of(Subscription& subscription) {
    auto got = next(subscription);
    INFO(got.status().to_string());
    REQUIRE(got.ok());
    CHECK(got->value.as<float>()[999] == static_cast<float>(got->step) + 999);
    return got->step;
  }
  Status failure_of(Subscription& subscription) {
    auto got = next(subscription);
    REQUIRE_FALSE(got.ok());
    return got.status();
  }
};

TEST_CASE("a subscription gives every step once and in order", "[exchange][subscription]") {
  for (int ahead : {1, 2, 7, Subscription::kMostAhead}) {
    INFO("ahead " << ahead);
    NothingLeftBehind audit;
    Subscribed scene;
    Subscription subscription = scene.there().subscribe("w", {.first_step = 3, .ahead = ahead});
    CHECK(subscription.next_step() == 3);
    // Bursts of every length up to more than are asked for at once.
    uint64_t published = 3, taken = 3;
    for (int burst = 1; burst < 40; burst += 3) {
      std::vector<Publication> publications;
      for (int i = 0; i < burst; ++i) publications.push_back(scene.publish(published++));
      while (taken < published) {
        REQUIRE(scene.step_of(subscription) == taken);
        ++taken;
        REQUIRE(subscription.next_step() == taken);
      }
      for (Publication& publication : publications) {
        REQUIRE(scene.until([&] { return publication.ready(); }));
        CHECK(publication.readers_done() == 1);
      }
    }
    scene.settle();
    CHECK_FALSE(subscription.ready());
    CHECK(subscription.missed() == 0);
  }
}

TEST_CASE("a subscription asks for no more steps than it may", "[exchange][subscription]") {
  NothingLeftBehind audit;
  Subscribed scene;
  std::vector<Publication> publications;
  for (uint64_t step = 0; step < 10; ++step) publications.push_back(scene.publish(step));
  {
    Subscription subscription = scene.there().subscribe("w", {.ahead = 4});
    REQUIRE(scene.until([&] { return subscription.ready(); }));
    scene.settle();
    // Those behind the fourth have not been asked for: another reader gets them.
    Fetch fifth = scene.there().fetch({"w", 4}, soon());
    auto got = scene.take(fifth);
    REQUIRE(got.ok());
    CHECK(got->step == 4);
    for (uint64_t step = 0; step < 2; ++step) CHECK(scene.step_of(subscription) == step);
  }
  // What it had not taken goes back, and counts as read.
  for (uint64_t step = 0; step < 4; ++step) {
    INFO(step);
    REQUIRE(scene.until([&] { return publications[step].ready(); }));
  }
  scene.settle();
  CHECK_FALSE(publications[9].ready());
}

TEST_CASE("several subscribers each get every step", "[exchange][subscription]") {
  NothingLeftBehind audit;
  Subscribed scene(3);
  std::vector<Subscription> subscriptions;
  for (int i = 0; i < 3; ++i)
    subscriptions.push_back(scene.there(static_cast<size_t>(i)).subscribe("w", {.ahead = 1 + i}));
  for (uint64_t step = 0; step < 20; ++step) {
    Publication publication = scene.publish(step, {.readers = 3});
    for (Subscription& each : subscriptions) REQUIRE(scene.step_of(each) == step);
    REQUIRE(scene.until([&] { return publication.ready(); }));
  }
}

TEST_CASE("retired steps are passed over and counted", "[exchange][subscription]") {
  NothingLeftBehind audit;
  Subscribed scene;
  for (uint64_t step = 0; step < 50; ++step)
    (void)scene.publish(step, {.readers = until_retired, .keep_steps = 2});
  Subscription subscription = scene.there().subscribe("w");
  CHECK(scene.step_of(subscription) == 47);
  CHECK(subscription.missed() == 47);
  CHECK(scene.step_of(subscription) == 48);
  CHECK(scene.step_of(subscription) == 49);
  scene.settle();
  CHECK_FALSE(subscription.ready());
  // While it waits for them.
  for (uint64_t step : {60, 61, 62})
    (void)scene.publish(step, {.readers = until_retired, .keep_steps = 0});
  CHECK(scene.step_of(subscription) == 62);
  CHECK(subscription.missed() == 47 + 12);
}

TEST_CASE("steps that others have read are passed over, however many", "[exchange][subscription]") {
  NothingLeftBehind audit;
  Subscribed scene(2);
  constexpr uint64_t kRead = 50;
  {
    Subscription early = scene.there(0).subscribe("w");
    for (uint64_t step = 0; step < kRead; ++step) {
      Publication publication = scene.publish(step);
      REQUIRE(scene.step_of(early) == step);
      REQUIRE(scene.until([&] { return publication.ready(); }));
    }
  }
  Subscription late = scene.there(1).subscribe("w");
  Publication next = scene.publish(kRead);
  CHECK(scene.step_of(late) == kRead);
  CHECK(late.missed() == kRead);
  REQUIRE(scene.until([&] { return next.ready(); }));
}

TEST_CASE("a subscription can begin with the latest step", "[exchange][subscription]") {
  for (bool published : {true, false}) {
    INFO(published);
    NothingLeftBehind audit;
    Subscribed scene;
    if (published) {
      for (uint64_t step : {5, 6, 7}) (void)scene.publish(step, {.readers = until_retired});
    }
    Subscription subscription = scene.there().subscribe("w", {.first_step = kLatest});
    CHECK(subscription.next_step() == kLatest);
    if (!published) {
      scene.settle();
      CHECK_FALSE(subscription.ready());
      (void)scene.publish(7, {.readers = until_retired});
    }
    CHECK(scene.step_of(subscription) == 7);
    CHECK(subscription.next_step() == 8);
    (void)scene.publish(8, {.readers = until_retired});
    CHECK(scene.step_of(subscription) == 8);
  }
}

TEST_CASE("a subscription goes on when its publisher has come back", "[exchange][subscription]") {
  NothingLeftBehind audit;
  // Here the publishers are around, and the subscriber is in the middle.
  Subscribed scene(1);
  auto publish = [&](size_t which, uint64_t step) {
    Star::Reader& by = scene.readers[which];
    REQUIRE(by.exchange
                ->publish({"w", step}, floats(*by.context, {1000}, static_cast<float>(step)),
                          {.readers = until_retired})
                .ok());
  };
  Subscription subscription = scene.exchange->subscribe("w", {.ahead = 4});
  publish(0, 0);
  CHECK(scene.step_of(subscription) == 0);
  scene.leave(scene.readers[0]);
  CHECK(scene.failure_of(subscription).code() == Code::kUnreachable);
  scene.settle();
  CHECK_FALSE(subscription.ready());  // one error, whatever was asked for
  CHECK(subscription.next_step() == 1);
  scene.join();
  for (uint64_t step = 1; step < 8; ++step) {
    publish(1, step);
    CHECK(scene.step_of(subscription) == step);
  }
}

TEST_CASE(
    "of several endpoints and its own exchange a subscription takes each step from whoever "
    "has it",
    "[exchange][subscription]") {
  NothingLeftBehind audit;
  Subscribed scene(2);
  auto publish = [&](Exchange& exchange, Context& context, uint64_t step) {
    REQUIRE(exchange
                .publish({"w", step}, floats(context, {1000}, static_cast<float>(step)),
                         {.readers = until_retired})
                .ok());
  };
  // One that was there before is not asked of a peer.
  publish(*scene.exchange, *scene.context, 1);
  Subscription subscription = scene.exchange->subscribe("w", {.ahead = 6});
  publish(*scene.readers[0].exchange, *scene.readers[0].context, 0);
  publish(*scene.exchange, *scene.context, 2);
  for (uint64_t step = 0; step < 3; ++step) CHECK(scene.step_of(subscription) == step);
  // Of the other peer none comes, if it is asked of one alone.
  Subscription of_one =
      scene.exchange->subscribe("w", {.first_step = 7, .from = &scene.readers[1].far});
  publish(*scene.exchange, *scene.context, 7);
  publish(*scene.readers[0].exchange, *scene.readers[0].context, 7);
  scene.settle();
  CHECK_FALSE(of_one.ready());
  publish(*scene.readers[1].exchange, *scene.readers[1].context, 7);
  CHECK(scene.step_of(of_one) == 7);
}

TEST_CASE("another endpoint that has nothing holds up no subscription",
          "[exchange][subscription]") {
  NothingLeftBehind audit;
  Subscribed scene(2);  // the second publishes nothing
  auto publish = [&](size_t which, uint64_t step, int64_t keep) {
    Star::Reader& by = scene.readers[which];
    REQUIRE(by.exchange
                ->publish({"w", step}, floats(*by.context, {1000}, static_cast<float>(step)),
                          {.readers = until_retired, .keep_steps = keep})
                .ok());
  };
  for (uint64_t step = 0; step < 20; ++step) publish(0, step, 3);
  Subscription subscription = scene.exchange->subscribe("w", {.ahead = 4});
  CHECK(scene.step_of(subscription) == 16);
  CHECK(subscription.missed() == 16);
  for (uint64_t step = 17; step < 20; ++step) CHECK(scene.step_of(subscription) == step);
  // Its publisher dies, and another comes.
  scene.leave(scene.readers[0]);
  CHECK(scene.failure_of(subscription).code() == Code::kUnreachable);
  scene.settle();
  scene.join();
  for (uint64_t step = 20; step < 30; ++step) {
    publish(2, step, -1);
    CHECK(scene.step_of(subscription) == step);
  }
}

TEST_CASE("steps that its own exchange has retired are passed over, too",
          "[exchange][subscription]") {
  NothingLeftBehind audit;
  Subscribed scene(1);
  Star::Reader& other = scene.readers[0];
  for (uint64_t step = 0; step < 40; ++step)
    (void)scene.publish(step, {.readers = until_retired, .keep_steps = 2});
  Subscription subscription = scene.exchange->subscribe("w", {.ahead = 4});
  CHECK(scene.step_of(subscription) == 37);
  CHECK(subscription.missed() == 37);
  for (uint64_t step = 38; step < 40; ++step) CHECK(scene.step_of(subscription) == step);
  // One that it asked for in vain: another reader had the only place.
  Fetch first = other.exchange->fetch({"w", 40}, soon());
  scene.settle();
  Publication taken = scene.publish(40, {.readers = 1});
  {
    auto got = scene.take(first);
    REQUIRE(got.ok());
  }
  REQUIRE(scene.until([&] { return taken.ready(); }));
  (void)scene.publish(41);
  CHECK(scene.step_of(subscription) == 41);
  CHECK(subscription.missed() == 38);
}

Detached publish_next(Subscribed& scene, Publication before, std::optional<Publication>& after,
                      std::optional<Subscription>* ends) {
  co_await before;
  after = scene.publish(2, {.readers = 2});
  if (ends != nullptr) ends->reset();
}

TEST_CASE("a publication whose end publishes the next step, or ends its last reader",
          "[exchange][subscription]") {
  const bool ends = GENERATE(false, true);
  NothingLeftBehind audit;
  Subscribed scene;
  std::optional<Publication> after;
  std::optional<Subscription> subscription;
  Publication before = scene.publish(0);
  (void)scene.publish(1);
  publish_next(scene, std::move(before), after, ends ? &subscription : nullptr);
  subscription.emplace(scene.exchange->subscribe("w", {.ahead = 4}));
  REQUIRE(scene.until([&] { return after.has_value(); }));
  if (!ends) {
    for (uint64_t step = 0; step < 3; ++step) CHECK(scene.step_of(*subscription) == step);
    scene.settle();
    CHECK(after->readers_done() == 1);
  }
  // What else was waiting is still found.
  Fetch waits = scene.exchange->fetch({"v", 1}, in(50ms));
  CHECK(scene.take(waits).code() == Code::kTimedOut);
}

TEST_CASE("a subscription that cannot fetch says why", "[exchange][subscription]") {
  NothingLeftBehind audit;
  Subscribed scene;
  const std::string long_name(256, 'x');
  struct Wrong {
    std::string_view name;
    SubscribeOptions options;
    const char* text;
  };
  for (const Wrong& wrong : {
           Wrong{"", {}, "a key has 1 to 255 bytes, not 0"},
           Wrong{long_name, {}, "a key has 1 to 255 bytes, not 256"},
           Wrong{"w", {.ahead = 0}, "1 to 32 steps ahead, not 0"},
           Wrong{"w", {.ahead = 33}, "1 to 32 steps ahead, not 33"},
           Wrong{"w", {.first_step = kLastStep + 1}, "steps go up to 2^64 - 3"},
       }) {
    Subscription subscription = scene.there().subscribe(wrong.name, wrong.options);
    const Status status = scene.failure_of(subscription);
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK_THAT(std::string(status.detail()), Catch::Contains(wrong.text));
    CHECK(scene.failure_of(subscription).code() == Code::kInvalidArgument);
  }
  Endpoint nobody;
  Subscription closed = scene.there().subscribe("w", {.from = &nobody});
  CHECK(scene.failure_of(closed).code() == Code::kWrongState);
  CHECK(scene.failure_of(closed).code() == Code::kWrongState);
  // The last step that there is.
  (void)scene.publish(kLastStep - 1, {.readers = until_retired});
  (void)scene.publish(kLastStep, {.readers = until_retired});
  Subscription last = scene.there().subscribe("w", {.first_step = kLastStep - 1, .ahead = 32});
  CHECK(scene.step_of(last) == kLastStep - 1);
  CHECK(scene.step_of(last) == kLastStep);
  CHECK(scene.failure_of(last).code() == Code::kInvalidArgument);
}

TEST_CASE("what a subscription stands on may go first", "[exchange][subscription]") {
  NothingLeftBehind audit;
  Subscribed scene;
  Publication publication = scene.publish(0);
  std::optional<Subscription> subscription = scene.there().subscribe("w", {.ahead = 3});
  SECTION("the exchange") {
    const bool came = GENERATE(true, false);
    if (came) REQUIRE(scene.until([&] { return subscription->ready(); }));
    scene.readers[0].exchange.reset();
    REQUIRE(subscription->ready());
    if (came) CHECK(scene.step_of(*subscription) == 0);
    for (int i = 0; i < 5; ++i) CHECK(scene.failure_of(*subscription).code() == Code::kCancelled);
  }
  SECTION("the subscription, with steps on their way") { subscription.reset(); }
  SECTION("the subscription is moved") {
    Subscription moved = std::move(*subscription);
    Subscription other = scene.there().subscribe("other");
    other = std::move(moved);
    CHECK(scene.step_of(other) == 0);
    (void)scene.publish(1);
    CHECK(scene.step_of(other) == 1);
  }
  subscription.reset();
  scene.settle();
}

// Takes steps until one fails.
Detached take_all(Subscription subscription, std::vector<uint64_t>& steps,
                  std::optional<Code>& end) {
  for (;;) {
    Result<Delivery<Tensor>> got = co_await subscription;
    if (!got.ok()) {
      end = got.code();
      co_return;
    }
    steps.push_back(got->step);
  }
}

TEST_CASE("a coroutine awaits one step after the other", "[exchange][subscription]") {
  NothingLeftBehind audit;
  Subscribed scene;
  std::vector<uint64_t> steps;
  std::optional<Code> end;
  for (uint64_t step = 0; step < 9; ++step)
    (void)scene.publish(step, {.readers = until_retired, .keep_steps = 4});
  take_all(scene.there().subscribe("w", {.ahead = 2}), steps, end);
  REQUIRE(scene.until([&] { return steps.size() == 5; }));
  for (uint64_t step = 9; step < 30; ++step) {
    (void)scene.publish(step, {.readers = until_retired, .keep_steps = 30});
    if (step % 4 == 0) scene.settle();
  }
  REQUIRE(scene.until([&] { return steps.size() == 26; }));
  for (size_t i = 0; i < steps.size(); ++i) CHECK(steps[i] == 4 + i);
  CHECK_FALSE(end);
  scene.readers[0].exchange.reset();
  CHECK(end == Code::kCancelled);
}

}  // namespace
}  // namespace sluice::test
