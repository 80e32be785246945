// The exchange with many readers, and with peers that come, go and come back.
#include <optional>

#include <sluice/exchange/exchange.h>

#include "tests/contract/pair.h"
#include "tests/contract/star.h"

namespace sluice::test {
namespace {

TEST_CASE("one tensor goes to eight readers without a copy where the path has views",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Star star;
  std::deque<Fetch> fetches;
  for (int i = 0; i < 8; ++i) {
    Star::Reader& reader = star.join();
    if (i % 2 == 0) fetches.push_back(reader.exchange->fetch({"w", 1}, soon()));
  }
  star.settle();
  Tensor source = floats(*star.context, {500'000}, 1);
  auto publication = star.exchange->publish({"w", 1}, source, {.readers = 8});
  source = Tensor();
  for (int i = 1; i < 8; i += 2)
    fetches.push_back(star.readers[static_cast<size_t>(i)].exchange->fetch({"w", 1}, soon()));
  uint64_t copied = 0;
  {
    std::vector<Tensor> held;
    for (Fetch& fetch : fetches) {
      auto got = star.take(fetch);
      REQUIRE(got.ok());
      CHECK(got->value.as<float>()[499'999] == 500'000);
      copied += got->receipt.copied_bytes + got->receipt.kernel_copied_bytes;
      held.push_back(std::move(got->value));
    }
    for (Star::Reader& reader : star.readers) copied += reader.far.counters().copied_bytes;
    if (path_has_views()) CHECK(copied == 0);
    if (path_has_views()) CHECK(star.context->arena().statistics().outstanding == 1);
  }
  CHECK(star.until([&] { return publication->ready(); }));
  CHECK(publication->readers_done() == 8);
}

TEST_CASE("the place of a reader that dies before it released is free for another",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Star star;
  Star::Reader& first = star.join();
  Star::Reader& second = star.join();
  auto publication = star.exchange->publish({"w", 1}, floats(*star.context, {100'000}, 1));
  // The only place is taken (over tcp: by a reader that has not read yet).
  const uint64_t asked = first.near.counters().messages_sent;
  const uint64_t heard = first.far.counters().messages_received;
  Fetch fetch = first.exchange->fetch({"w", 1}, soon());
  // A busy link may take the request later; nothing is answered meanwhile.
  while (first.near.counters().messages_sent == asked) first.context->progress();
  std::optional<Result<Delivery<Tensor>>> held;
  if (path_has_views()) {
    held.emplace(star.take(fetch));
    REQUIRE((*held).ok());
  } else {
    // Its request is here before the other one leaves.
    for (Instant end = soon(); first.far.counters().messages_received == heard && now() < end;)
      star.context->progress();
  }
  Fetch waiting = second.exchange->fetch({"w", 1}, soon());
  for (int i = 0; i < 200; ++i) {
    star.context->progress();
    second.context->progress();
  }
  CHECK_FALSE(waiting.ready());
  CHECK(publication->readers_done() == 0);
  star.leave(first);
  held.reset();
  auto got = star.take(waiting);
  INFO(got.status().to_string());
  REQUIRE(got.ok());
  CHECK(got->value.as<float>()[0] == 1);
  got->value = Tensor();
  CHECK(star.until([&] { return publication->ready(); }));
  CHECK(publication->readers_done() == 1);
}

TEST_CASE("a worker that comes back fetches what is there, under the names it used before",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Star star;
  for (uint64_t step = 1; step <= 2; ++step) {
    REQUIRE(star.exchange
                ->publish({"w", step}, floats(*star.context, {1000}, static_cast<float>(step)),
                          {.readers = until_retired})
                .ok());
  }
  uint64_t incarnation = 0;
  for (int life = 0; life < 3; ++life) {
    Star::Reader& worker = star.join();
    incarnation = worker.near.info().peer_incarnation;
    for (uint64_t step = 1; step <= 2; ++step) {
      Fetch fetch = worker.exchange->fetch({"w", step}, soon());
      auto got = star.take(fetch);
      REQUIRE(got.ok());
      CHECK(got->value.as<float>()[0] == static_cast<float>(step));
    }
    // And what it publishes is gone with it.
    REQUIRE(worker.exchange
                ->publish({"gradient", 1}, floats(*worker.context, {10}, static_cast<float>(life)),
                          {.readers = until_retired})
                .ok());
    Fetch gradient = star.exchange->fetch({"gradient", 1}, soon());
    {
      auto got = star.take(gradient);
      REQUIRE(got.ok());
      CHECK(got->value.as<float>()[0] == static_cast<float>(life));
    }
    star.leave(worker);
  }
  CHECK(incarnation != 0);
  Fetch gone = star.exchange->fetch({"gradient", 1}, in(10ms));
  CHECK(star.take(gone).code() == Code::kTimedOut);
}

TEST_CASE("a fetch under way when its only publisher goes says so and gives the buffer back",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Star star;
  Star::Reader& reader = star.join();
  auto fetch = star.exchange->fetch({"never", 1}, soon());
  auto buffer = star.context->allocate({100}, float32);
  auto into =
      star.exchange->fetch_into({"never", 1}, std::move(*buffer), soon(), {.from = &reader.far});
  star.settle();
  star.leave(reader);
  REQUIRE(star.until([&] { return fetch.ready() && into.ready(); }));
  CHECK(fetch.take().code() == Code::kUnreachable);
  Placed placed = into.take();
  CHECK(placed.code() == Code::kUnreachable);
  CHECK(placed.take_buffer());
}

TEST_CASE("asked of all, a fetch takes the first answer and the others keep their tensor",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Star star;
  for (int i = 0; i < 4; ++i) star.join();
  for (int round = 0; round < 3; ++round) {
    std::string name = "k" + std::to_string(round);
    Fetch fetch = star.exchange->fetch({name, 1}, soon());
    star.settle();
    CHECK_FALSE(fetch.ready());
    Star::Reader& owner = star.readers[static_cast<size_t>(round)];
    REQUIRE(owner.exchange
                ->publish({name, 1}, floats(*owner.context, {5000}, static_cast<float>(round)),
                          {.readers = until_retired})
                .ok());
    auto got = star.take(fetch);
    REQUIRE(got.ok());
    CHECK(got->value.as<float>()[0] == static_cast<float>(round));
    // The next step is asked at its home only.
    auto next = star.context->allocate({100}, float32);
    FetchInto into = star.exchange->fetch_into({name, 2}, std::move(*next), soon());
    REQUIRE(owner.exchange->publish({name, 2}, floats(*owner.context, {100}, 9)).ok());
    REQUIRE(star.until([&] { return into.ready(); }));
    CHECK(into.take().ok());
  }
}

TEST_CASE("an endpoint that is removed while several are asked leaves the fetch to the others",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Star star;
  for (int i = 0; i < 3; ++i) star.join();
  Fetch fetch = star.exchange->fetch({"w", 1}, soon());
  star.settle();
  Star::Reader& owner = star.readers[2];
  REQUIRE(owner.exchange->publish({"w", 1}, floats(*owner.context, {5000}, 3)).ok());
  for (int i = 0; i < 5; ++i) owner.context->progress();
  star.exchange->remove(star.readers[0].far);
  auto got = star.take(fetch);
  REQUIRE(got.ok());
  CHECK(got->value.as<float>()[0] == 3);
}

TEST_CASE("a fetch that no endpoint takes ends at once, whichever refused",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Star star;
  Star::Reader& full = star.join();
  std::vector<Fetch> many;
  // One table of operations is full, and the endpoint after it has no such key.
  const auto fill = [&] {
    for (uint64_t step = 1; step < 1'000'000; ++step) {
      many.push_back(star.exchange->fetch({"many", step}, soon(), {.from = &full.far}));
      if (many.back().ready()) return many.back().take().code();
    }
    return Code::kOk;
  };
  CHECK(fill() == Code::kTryAgain);
  Star::Reader& barred = star.join();
  star.exchange->remove(barred.far);
  REQUIRE(star.exchange->add(barred.far, {.may_supply = {"other"}}).ok());
  Fetch fetch = star.exchange->fetch({"w", 1}, soon());
  REQUIRE(fetch.ready());
  CHECK(fetch.take().code() == Code::kTryAgain);
  many.clear();
}

TEST_CASE("an exchange that takes over an endpoint is told the names again",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Star star;
  Star::Reader& reader = star.join();
  auto publish = [&](uint64_t step) {
    REQUIRE(star.exchange
                ->publish({"w", step}, floats(*star.context, {10}, static_cast<float>(step)),
                          {.readers = until_retired})
                .ok());
  };
  publish(1);
  Fetch first = reader.exchange->fetch({"w", 1}, soon());
  REQUIRE(star.take(first).ok());
  // A fetch that ended before anybody was there to hear its name.
  star.exchange->remove(reader.far);
  Fetch unheard = reader.exchange->fetch({"v", 1}, in(10ms));
  CHECK(star.take(unheard).code() == Code::kTimedOut);
  REQUIRE(star.exchange->add(reader.far).ok());
  // The number is unknown there: try again, with the name.
  publish(2);
  auto again = [&](const Key& key) {
    Fetch one = reader.exchange->fetch(key, soon());
    auto got = star.take(one);
    if (got.ok()) return got;
    CHECK(got.code() == Code::kTryAgain);
    Fetch two = reader.exchange->fetch(key, soon());
    return star.take(two);
  };
  auto got = again({"w", 2});
  INFO(got.status().to_string());
  REQUIRE(got.ok());
  CHECK(got->value.as<float>()[0] == 2);
  REQUIRE(
      star.exchange->publish({"v", 1}, floats(*star.context, {10}, 8), {.readers = until_retired})
          .ok());
  auto other = again({"v", 1});
  INFO(other.status().to_string());
  REQUIRE(other.ok());
  CHECK(other->value.as<float>()[0] == 8);
}

TEST_CASE("an exchange has at most 65536 keys in use and says so; those it has go on",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  auto context = open();
  {
    Exchange exchange(*context);
    Tensor one = floats(*context, {1}, 1);
    int accepted = 0;
    Status refused;
    for (int i = 0; i < (1 << 16) + 1; ++i) {
      auto publication = exchange.publish({"key" + std::to_string(i), 1}, one);
      if (publication.ok())
        ++accepted;
      else
        refused = publication.status();
    }
    CHECK(accepted == 1 << 16);
    CHECK(refused == Code::kTryAgain);
    CHECK(refused.detail().find("65536") != std::string_view::npos);
    CHECK(exchange.publish({"key7", 2}, one).ok());
    CHECK(context->run_until(exchange.fetch({"one more", 1}, soon())).code() == Code::kTryAgain);
    // Its last publication is read: its place goes to the next new name.
    CHECK(context->run_until(exchange.fetch({"key9", 1}, soon())).ok());
    CHECK(exchange.publish({"one more", 1}, one).ok());
    CHECK(exchange.publish({"two more", 1}, one).code() == Code::kTryAgain);
    CHECK(exchange.publish({"key7", 3}, one).ok());
  }
  CHECK(context->arena().statistics().outstanding == 0);
}

TEST_CASE("keys that nothing uses are forgotten, and their ids name others",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    Exchange near(*pair.client_context), far(*pair.server_context);
    REQUIRE(near.add(pair.client).ok());
    REQUIRE(far.add(pair.server).ok());
    // Every tenth name comes again soon, every hundredth long after it was forgotten.
    auto name_of = [](int i) {
      return "key" + std::to_string(i % 100 == 99 ? i % 10'000 : i % 10 == 9 ? i - 1 : i);
    };
    const int turns = static_cast<int>(Exchange::kIdleKeys) * 3;
    size_t most = 0;
    for (int i = 0; i < turns; ++i) {
      const uint64_t step = static_cast<uint64_t>(i);
      Fetch fetch = near.fetch({name_of(i), step}, soon());
      auto publication =
          far.publish({name_of(i), step}, floats(*pair.server_context, {1}, static_cast<float>(i)));
      REQUIRE(publication.ok());
      REQUIRE(pair.until([&] { return fetch.ready(); }));
      auto got = fetch.take();
      INFO(got.status().to_string());
      REQUIRE(got.ok());
      REQUIRE(got->value.as<float>()[0] == static_cast<float>(i));
      most = std::max({most, near.key_count(), far.key_count()});
    }
    // Beside the idle ones: names that the peer has given, which go when their ids are used again.
    CHECK(most <= 2 * Exchange::kIdleKeys + 8);
    // What ended lately is known to have ended, and what was forgotten may begin again.
    const uint64_t last = static_cast<uint64_t>(turns - 1);
    CHECK(far.publish({name_of(turns - 1), last}, floats(*pair.server_context, {1}, 1)).code() ==
          Code::kInvalidArgument);
    CHECK(far.publish({"key0", 0}, floats(*pair.server_context, {1}, 1)).ok());
  }
}

TEST_CASE("handles outlive their exchange and are ready with kCancelled", "[contract][exchange]") {
  NothingLeftBehind audit;
  Star star;
  Star::Reader& reader = star.join();
  auto publication = reader.exchange->publish({"mine", 1}, floats(*reader.context, {1000}, 1),
                                              {.readers = until_retired});
  Fetch held = star.exchange->fetch({"mine", 1}, soon());
  auto got = star.take(held);
  REQUIRE(got.ok());
  Fetch fetch = reader.exchange->fetch({"never", 1}, soon());
  auto buffer = reader.context->allocate({10}, float32);
  FetchInto into = reader.exchange->fetch_into({"never", 2}, std::move(*buffer), soon());
  reader.exchange.reset();
  CHECK(fetch.ready());
  CHECK(fetch.take().code() == Code::kCancelled);
  CHECK(into.take().code() == Code::kCancelled);
  if (path_has_views()) CHECK_FALSE(publication->ready());
  got->value = Tensor();
  CHECK(star.until([&] { return publication->ready(); }));
}

}  // namespace
}  // namespace sluice::test
