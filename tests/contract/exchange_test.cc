// The exchange: tensors by key and step, whoever comes first.
#include "tests/contract/pair.h"

#include <optional>

#include <sluice/api/task.h>
#include <sluice/exchange/exchange.h>

namespace sluice::test {
namespace {

struct Exchanges {
  explicit Exchanges(Pair& pair) : near(*pair.client_context), far(*pair.server_context) {
    REQUIRE(near.add(pair.client).ok());
    REQUIRE(far.add(pair.server).ok());
  }
  Exchange near, far;
};

Buffer float_room(Context& context, std::initializer_list<int64_t> shape, float value = -1) {
  auto buffer = context.allocate(shape, float32);
  REQUIRE(buffer.ok());
  for (float& each : buffer->as<float>()) each = value;
  return std::move(*buffer);
}

Result<Delivery<Tensor>> fetched(Pair& pair, Fetch fetch) {
  REQUIRE(pair.until([&] { return fetch.ready(); }));
  return fetch.take();
}
Placed placed(Pair& pair, FetchInto fetch) {
  REQUIRE(pair.until([&] { return fetch.ready(); }));
  return fetch.take();
}

TEST_CASE(
    "a tensor is fetched by key and step, the publisher first or the reader first, of every size",
    "[contract][exchange]") {
  NothingLeftBehind audit;
  for (bool reader_first : {false, true}) {
    for (int64_t rows : {0, 1, 100, 5000, 300'000}) {
      INFO(rows << " rows, reader first: " << reader_first);
      Pair pair;
      {
        Exchanges exchanges(pair);
        std::optional<Fetch> fetch;
        if (reader_first) {
          fetch.emplace(exchanges.near.fetch({"fc6/weight", 3}, soon()));
          pair.settle();
          CHECK_FALSE(fetch->ready());
        }
        auto publication =
            exchanges.far.publish({"fc6/weight", 3}, floats(*pair.server_context, {rows, 4}, 7));
        REQUIRE(publication.ok());
        pair.settle();
        if (!reader_first) fetch.emplace(exchanges.near.fetch({"fc6/weight", 3}, soon()));
        auto got = fetched(pair, std::move(*fetch));
        INFO(got.status().to_string());
        REQUIRE(got.ok());
        CHECK(got->value.descriptor().dtype() == float32);
        REQUIRE(got->value.descriptor().rank() == 2);
        CHECK(got->value.descriptor().shape()[0] == rows);
        for (int64_t i = 0; i < rows * 4; i += 97)
          REQUIRE(got->value.as<float>()[static_cast<size_t>(i)] == 7 + static_cast<float>(i));
        CHECK(got->receipt.bytes == static_cast<uint64_t>(rows) * 16);
        if (path_has_views())
          CHECK(got->receipt.copied_bytes + got->receipt.kernel_copied_bytes == 0);
        if (path_has_views() && rows > 0) CHECK(got->value.owned_by_peer());
        got->value = Tensor();
        CHECK(pair.until([&] { return publication->ready(); }));
        CHECK(publication->readers_done() == 1);
      }
    }
  }
}

TEST_CASE("a tensor is fetched into the reader's own memory, of every size, either side first",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  for (bool reader_first : {false, true}) {
    for (int64_t rows : {0, 1, 100, 5000, 300'000}) {
      INFO(rows << " rows, reader first: " << reader_first);
      Pair pair;
      {
        Exchanges exchanges(pair);
        auto publish = [&] {
          REQUIRE(exchanges.far.publish({"g", 1}, floats(*pair.server_context, {rows, 4}, 1)).ok());
        };
        if (!reader_first) publish();
        pair.settle();
        Buffer mine = float_room(*pair.client_context, {rows, 4});
        std::byte* where = mine.data();
        FetchInto fetch = exchanges.near.fetch_into({"g", 1}, std::move(mine), soon());
        pair.settle();
        if (reader_first) publish();
        Placed got = placed(pair, std::move(fetch));
        INFO(got.status().to_string());
        REQUIRE(got.ok());
        Buffer back = got.take_buffer();
        CHECK(back.data() == where);
        for (int64_t i = 0; i < rows * 4; i += 97)
          REQUIRE(back.as<float>()[static_cast<size_t>(i)] == 1 + static_cast<float>(i));
      }
    }
  }
}

TEST_CASE("names of every length are keys of their own, whatever byte they differ in",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Pair pair;
  Exchange here(*pair.client_context);
  for (size_t length : {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 40, 255}) {
    std::vector<std::string> names = {std::string(length, 'n')};
    for (size_t at = 0; at < length; ++at) {
      names.push_back(names[0]);
      names.back()[at] = 'm';
    }
    for (size_t i = 0; i < names.size(); ++i) {
      Tensor value = floats(*pair.client_context, {1}, static_cast<float>(i));
      REQUIRE(here.publish({names[i], 1}, std::move(value)).ok());
    }
    for (size_t i = 0; i < names.size(); ++i) {
      INFO(names[i]);
      Fetch fetch = here.fetch({names[i], 1}, soon());
      REQUIRE(fetch.ready());
      auto got = fetch.take();
      REQUIRE(got.ok());
      CHECK(got->value.as<float>()[0] == static_cast<float>(i));
    }
  }
}

TEST_CASE("steps of one key are different tensors, and their shape may change between steps",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    Exchanges exchanges(pair);
    for (int64_t step = 1; step <= 6; ++step) {
      int64_t rows = step * 1000;
      auto fetch = exchanges.near.fetch({"w", static_cast<uint64_t>(step)}, soon());
      REQUIRE(exchanges.far
                  .publish({"w", static_cast<uint64_t>(step)},
                           floats(*pair.server_context, {rows, step}, static_cast<float>(step)))
                  .ok());
      auto got = fetched(pair, std::move(fetch));
      REQUIRE(got.ok());
      CHECK(got->value.descriptor().shape()[0] == rows);
      CHECK(got->value.descriptor().shape()[1] == step);
      CHECK(got->value.as<float>()[0] == static_cast<float>(step));
    }
  }
}

TEST_CASE("a destination of another dtype or shape is refused, untouched, and comes back",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  for (bool reader_first : {false, true}) {
    Pair pair;
    {
      Exchanges exchanges(pair);
      auto publish = [&] {
        return exchanges.far.publish({"w", 1}, floats(*pair.server_context, {100, 100}, 1),
                                     {.readers = until_retired});
      };
      if (!reader_first) REQUIRE(publish().ok());
      std::vector<FetchInto> fetches;
      fetches.push_back(
          exchanges.near.fetch_into({"w", 1}, float_room(*pair.client_context, {100, 99}), soon()));
      fetches.push_back(
          exchanges.near.fetch_into({"w", 1}, float_room(*pair.client_context, {10'000}), soon()));
      auto ints = pair.client_context->allocate({100, 100}, int32);
      fill(ints->bytes(), 3);
      fetches.push_back(exchanges.near.fetch_into({"w", 1}, std::move(*ints), soon()));
      pair.settle();
      if (reader_first) REQUIRE(publish().ok());
      for (FetchInto& fetch : fetches) {
        Placed got = placed(pair, std::move(fetch));
        CHECK(got.code() == Code::kInvalidArgument);
        INFO(got.status().to_string());
        CHECK(got.status().detail().find("'w' step 1") != std::string_view::npos);
        Buffer back = got.take_buffer();
        REQUIRE(back);
        bool is_float = back.descriptor().dtype() == float32;
        CHECK((is_float ? back.as<float>()[0] == -1 : holds(back.bytes(), 3)));
      }
      // The right one still gets it.
      CHECK(placed(pair, exchanges.near.fetch_into(
                             {"w", 1}, float_room(*pair.client_context, {100, 100}), soon()))
                .ok());
    }
  }
}

TEST_CASE("a key that never comes is kTimedOut and named; the destination comes back",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    Exchanges exchanges(pair);
    auto lone = exchanges.near.fetch({"absent", 41}, in(20ms));
    auto into =
        exchanges.near.fetch_into({"absent", 41}, float_room(*pair.client_context, {9}), in(20ms));
    auto got = fetched(pair, std::move(lone));
    CHECK(got.code() == Code::kTimedOut);
    CHECK(got.status().detail().find("'absent' step 41") != std::string_view::npos);
    Placed back = placed(pair, std::move(into));
    CHECK(back.code() == Code::kTimedOut);
    CHECK(back.status().detail().find("'absent' step 41") != std::string_view::npos);
    Buffer buffer = back.take_buffer();
    REQUIRE(buffer);
    CHECK(buffer.as<float>()[8] == -1);
    // The key is as good as new afterwards.
    REQUIRE(exchanges.far.publish({"absent", 41}, floats(*pair.server_context, {9}, 1)).ok());
    CHECK(fetched(pair, exchanges.near.fetch({"absent", 41}, soon())).ok());
  }
}

TEST_CASE("a fetch with no endpoint to ask times out and is named too", "[contract][exchange]") {
  NothingLeftBehind audit;
  auto context = open();
  Exchange exchange(*context);
  auto got = context->run_until(exchange.fetch({"nobody", 2}, in(5ms)));
  CHECK(got.code() == Code::kTimedOut);
  CHECK(got.status().detail().find("'nobody' step 2") != std::string_view::npos);
}

TEST_CASE("the same key and step cannot be published twice, nor empty or long keys",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    Exchanges exchanges(pair);
    auto first = exchanges.far.publish({"w", 1}, floats(*pair.server_context, {4}, 1));
    REQUIRE(first.ok());
    auto second = exchanges.far.publish({"w", 1}, floats(*pair.server_context, {4}, 2));
    CHECK(second.code() == Code::kInvalidArgument);
    CHECK(second.status().detail().find("'w' step 1") != std::string_view::npos);
    auto got = fetched(pair, exchanges.near.fetch({"w", 1}, soon()));
    REQUIRE(got.ok());
    CHECK(got->value.as<float>()[0] == 1);
    CHECK(exchanges.far.publish({"", 1}, floats(*pair.server_context, {4}, 1)).code() ==
          Code::kInvalidArgument);
    CHECK(exchanges.far.publish({std::string(256, 'k'), 1}, floats(*pair.server_context, {4}, 1))
              .code() == Code::kInvalidArgument);
    CHECK(exchanges.far.publish({"r", 1}, floats(*pair.server_context, {4}, 1), {.readers = 0})
              .code() == Code::kInvalidArgument);
    std::string longest(255, 'k');
    REQUIRE(exchanges.far.publish({longest, 1}, floats(*pair.server_context, {4}, 9)).ok());
    CHECK(fetched(pair, exchanges.near.fetch({longest, 1}, soon())).ok());
    CHECK(fetched(pair, exchanges.near.fetch({std::string(256, 'k'), 1}, soon())).code() ==
          Code::kInvalidArgument);
  }
}

TEST_CASE("a publication ends after its readers, and a retired step is kWrongState",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    Exchanges exchanges(pair);
    auto two =
        exchanges.far.publish({"w", 1}, floats(*pair.server_context, {1000}, 1), {.readers = 2});
    auto first = fetched(pair, exchanges.near.fetch({"w", 1}, soon()));
    auto second = fetched(pair, exchanges.near.fetch({"w", 1}, soon()));
    REQUIRE((first.ok() && second.ok()));
    if (path_has_views()) CHECK_FALSE(two->ready());  // both still hold it
    first->value = second->value = Tensor();
    CHECK(pair.until([&] { return two->ready(); }));
    CHECK(two->readers_done() == 2);
    auto late = fetched(pair, exchanges.near.fetch({"w", 1}, soon()));
    CHECK(late.code() == Code::kWrongState);
    CHECK(late.status().detail().find("'w' step 1") != std::string_view::npos);
    CHECK(exchanges.far.publish({"w", 1}, floats(*pair.server_context, {4}, 1)).code() ==
          Code::kInvalidArgument);

    auto kept = exchanges.far.publish({"x", 5}, floats(*pair.server_context, {4}, 1),
                                      {.readers = until_retired});
    auto waiting = exchanges.near.fetch({"x", 4}, soon());
    pair.settle();
    auto holder = fetched(pair, exchanges.near.fetch({"x", 5}, soon()));
    kept->retire();
    CHECK(fetched(pair, exchanges.near.fetch({"x", 5}, soon())).code() == Code::kWrongState);
    REQUIRE(holder.ok());
    CHECK(holder->value.as<float>()[0] == 1);  // who holds it keeps it
    holder->value = Tensor();
    CHECK(pair.until([&] { return kept->ready(); }));
    Tensor home = kept->take();
    CHECK(home.try_thaw().has_value());
    waiting.cancel();
    CHECK(fetched(pair, std::move(waiting)).code() == Code::kCancelled);
  }
}

TEST_CASE("keep_steps retires what is older and refuses those who wait for it",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    Exchanges exchanges(pair);
    auto never = exchanges.near.fetch({"w", 2}, soon());
    for (uint64_t step = 3; step <= 8; ++step) {
      REQUIRE(exchanges.far
                  .publish({"w", step},
                           floats(*pair.server_context, {100}, static_cast<float>(step)),
                           {.readers = until_retired, .keep_steps = 2})
                  .ok());
      pair.settle();
    }
    CHECK(fetched(pair, std::move(never)).code() == Code::kWrongState);
    for (uint64_t step = 3; step <= 8; ++step) {
      auto got = fetched(pair, exchanges.near.fetch({"w", step}, soon()));
      INFO(step << ": " << got.status().to_string());
      CHECK(got.code() == (step >= 6 ? Code::kOk : Code::kWrongState));
    }
  }
}

TEST_CASE("what is published here is fetched here without a peer", "[contract][exchange]") {
  NothingLeftBehind audit;
  auto context = open();
  {
    Exchange exchange(*context);
    auto early = exchange.fetch({"w", 1}, soon());
    Tensor source = floats(*context, {100}, 5);
    auto publication = exchange.publish({"w", 1}, source, {.readers = 3});
    REQUIRE(publication.ok());
    auto got = context->run_until(early);
    REQUIRE(got.ok());
    CHECK(got->value.data() == source.data());
    CHECK(got->receipt.copied_bytes == 0);
    Placed into =
        context->run_until(exchange.fetch_into({"w", 1}, float_room(*context, {100}), soon()));
    REQUIRE(into.ok());
    CHECK(into.value().receipt.copied_bytes == 400);
    CHECK(into.value().value.as<float>()[99] == 104);
    CHECK_FALSE(publication->ready());
    REQUIRE(context->run_until(exchange.fetch({"w", 1}, soon())).ok());
    CHECK(publication->ready());
  }
  CHECK(context->arena().statistics().outstanding == 0);
}

TEST_CASE("a buffer that waits at a peer is filled by the step that is published here",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Pair pair;
  Exchanges exchanges(pair);
  auto ours = exchanges.near.fetch_into({"w", 1}, float_room(*pair.client_context, {100}), soon());
  pair.settle();  // asked
  auto published =
      exchanges.near.publish({"w", 1}, floats(*pair.client_context, {100}, 5), {.readers = 1});
  REQUIRE(published.ok());
  Placed got = placed(pair, std::move(ours));
  REQUIRE(got.ok());
  CHECK(got.value().receipt.path == Path::kLoopback);
  CHECK(got.value().value.as<float>()[99] == 104);
  CHECK(pair.until([&] { return published->ready(); }));
  CHECK(published->readers_done() == 1);
}

TEST_CASE("a buffer is asked for again when the place here goes to another, and cancelled once",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Pair pair;
  Exchanges exchanges(pair);
  auto room = [&] { return float_room(*pair.client_context, {100}); };
  auto first = exchanges.near.fetch_into({"w", 1}, room(), soon());
  auto second = exchanges.near.fetch_into({"v", 1}, room(), soon());
  pair.settle();
  auto here = [&](const char* key) {
    auto published =
        exchanges.near.publish({key, 1}, floats(*pair.client_context, {100}, 5), {.readers = 1});
    REQUIRE(published.ok());
    return std::move(*published);
  };
  Publication w = here("w"), v = here("v");
  // The buffers are still on their way back.
  auto taken = exchanges.near.fetch({"w", 1}, soon());
  REQUIRE(taken.ready());
  REQUIRE(taken.take().ok());
  second.cancel();
  Placed none = placed(pair, std::move(second));
  CHECK(none.code() == Code::kCancelled);
  CHECK(none.take_buffer());
  CHECK_FALSE(v.ready());
  CHECK_FALSE(first.ready());
  auto published = exchanges.far.publish({"w", 1}, floats(*pair.server_context, {100}, 9));
  REQUIRE(published.ok());
  Placed got = placed(pair, std::move(first));
  REQUIRE(got.ok());
  CHECK(got.value().value.as<float>()[99] == 108);
  v.retire();
  published->retire();
}

TEST_CASE("buffers go round: publish, take back, thaw, fill, publish", "[contract][exchange]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    Exchanges exchanges(pair);
    Buffer weights = float_room(*pair.server_context, {50'000});
    Buffer mine = float_room(*pair.client_context, {50'000});
    std::byte *there = weights.data(), *here = mine.data();
    for (uint64_t step = 1; step <= 10; ++step) {
      for (float& value : weights.as<float>()) value = static_cast<float>(step);
      auto fetch = exchanges.near.fetch_into({"w", step}, std::move(mine), soon());
      auto publication = exchanges.far.publish({"w", step}, std::move(weights).freeze());
      REQUIRE(publication.ok());
      Placed got = placed(pair, std::move(fetch));
      REQUIRE(got.ok());
      mine = got.take_buffer();
      CHECK(mine.as<float>()[49'999] == static_cast<float>(step));
      REQUIRE(pair.until([&] { return publication->ready(); }));
      Tensor home = publication->take();
      auto thawed = home.try_thaw();
      REQUIRE(thawed.has_value());
      weights = std::move(*thawed);
    }
    CHECK(weights.data() == there);
    CHECK(mine.data() == here);
  }
}

Task<bool> comes_home(Publication publication) {
  Tensor home = co_await publication;
  co_return static_cast<bool>(home);
}

TEST_CASE("an awaited publication outlives its exchange and ends when its last reader lets go",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    Exchange near{*pair.client_context};
    REQUIRE(near.add(pair.client).ok());
    std::optional<Exchange> far(std::in_place, *pair.server_context);
    REQUIRE(far->add(pair.server).ok());
    auto fetch = near.fetch({"w", 1}, soon());
    auto publication = far->publish({"w", 1}, floats(*pair.server_context, {5000, 4}, 1));
    REQUIRE(publication.ok());
    auto got = fetched(pair, std::move(fetch));
    REQUIRE(got.ok());
    Task<bool> home = comes_home(std::move(*publication));
    far.reset();
    pair.settle();
    if (path_has_views()) CHECK_FALSE(home.ready());
    got->value = Tensor();
    REQUIRE(pair.until([&] { return home.ready(); }));
    CHECK(home.take());
  }
}

TEST_CASE("acquire_stable makes a peer's tensor our own with one counted copy",
          "[contract][exchange]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    Exchanges exchanges(pair);
    REQUIRE(exchanges.far.publish({"w", 1}, floats(*pair.server_context, {1000}, 2)).ok());
    auto got = fetched(pair, exchanges.near.fetch({"w", 1}, soon()));
    REQUIRE(got.ok());
    CHECK((got->receipt.trust == Trust::kShared) == path_has_views());
    auto stable = exchanges.near.acquire_stable(got->value);
    REQUIRE(stable.ok());
    CHECK_FALSE(stable->value.owned_by_peer());
    CHECK(stable->receipt.copied_bytes == (path_has_views() ? 4000u : 0u));
    CHECK(stable->value.as<float>()[999] == 1001);
    CHECK(stable->value.descriptor().same_layout(got->value.descriptor()));
  }
}

}  // namespace
}  // namespace sluice::test
