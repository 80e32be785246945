// Coroutines that await: fetches of an exchange, connections, and other coroutines.
#include "tests/contract/pair.h"

#include <string>
#include <utility>

#include <sluice/api/connecting.h>
#include <sluice/api/task.h>
#include <sluice/exchange/exchange.h>

namespace sluice::test {
namespace {

Task<int> sum_of(Exchange& exchange, int keys, Instant deadline) {
  int sum = 0;
  for (int i = 0; i < keys; ++i) {
    std::string name = "w" + std::to_string(i);
    auto delivery = co_await exchange.fetch({name, 1}, deadline);
    if (!delivery.ok()) co_return -1;
    sum += static_cast<int>(delivery->value.as<float>()[0]);
  }
  co_return sum;
}

Task<int> sum_of_two(Exchange& exchange, Instant deadline) {
  int left = co_await sum_of(exchange, 3, deadline);
  int right = co_await sum_of(exchange, 5, deadline);
  co_return left * 100 + right;
}

struct Exchanges {
  explicit Exchanges(Pair& pair) : near(*pair.client_context), far(*pair.server_context) {
    REQUIRE(near.add(pair.client).ok());
    REQUIRE(far.add(pair.server).ok());
  }
  Exchange near, far;
};

TEST_CASE("a coroutine awaits fetches one after the other, also of coroutines it calls",
          "[contract][waiting]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    Exchanges exchanges(pair);
    auto task = sum_of_two(exchanges.near, soon());
    CHECK_FALSE(task.ready());
    for (int i = 4; i >= 0; --i) {
      REQUIRE(exchanges.far
                  .publish({"w" + std::to_string(i), 1},
                           floats(*pair.server_context, {8}, static_cast<float>(i)),
                           {.readers = until_retired})
                  .ok());
      pair.settle();
    }
    CHECK(pair.client_context->run_until(task).value() == 3 * 100 + 10);
  }
}

TEST_CASE("a coroutine that ends with its fetch leaves the exchange in order",
          "[contract][waiting]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    Exchanges exchanges(pair);
    auto task = sum_of(exchanges.near, 1, soon());
    REQUIRE(
        exchanges.far
            .publish({"w0", 1}, floats(*pair.server_context, {8}, 1), {.readers = until_retired})
            .ok());
    CHECK(pair.client_context->run_until(task).value() == 1);
    // Two fetches at once: neither may be the other.
    auto a = exchanges.near.fetch({"a", 1}, soon());
    auto b = exchanges.near.fetch({"b", 1}, soon());
    REQUIRE(exchanges.far.publish({"b", 1}, floats(*pair.server_context, {8}, 20)).ok());
    auto got_b = pair.client_context->run_until(b);
    REQUIRE(got_b.ok());
    CHECK(got_b->value.as<float>()[0] == 20);
    CHECK_FALSE(a.ready());
    REQUIRE(exchanges.far.publish({"a", 1}, floats(*pair.server_context, {8}, 10)).ok());
    auto got_a = pair.client_context->run_until(a);
    REQUIRE(got_a.ok());
    CHECK(got_a->value.as<float>()[0] == 10);
  }
}

Task<Result<Endpoint>> met(Context& context, std::string address) {
  Result<Endpoint> endpoint = co_await start_connect(context, address);
  co_return std::move(endpoint);
}

// What goes on when a connection is there may wait inside for another one, of the same context.
Task<Result<Endpoint>> met_twice(Context& context, std::string address) {
  Result<Endpoint> first = co_await start_connect(context, address);
  if (!first.ok()) co_return first.status();
  co_return context.connect(address);
}

TEST_CASE("connecting is an operation: polled, awaited, cancelled, and over with its context",
          "[contract][waiting]") {
  NothingLeftBehind audit;
  Pair pair;
  Context& context = *pair.client_context;
  // Paths between processes return before the peer has had a turn.
  const bool in_turns = path_under_test() != "loopback" && path_under_test() != "pipe";
  Connecting polled = start_connect(context, pair.address);
  CHECK(polled.ready() == !in_turns);
  Result<Endpoint> near = context.run_until(polled, soon());
  REQUIRE(near.ok());
  Result<Endpoint> far = pair.listener->accept(soon());
  REQUIRE(far.ok());
  auto task = met(context, pair.address);
  CHECK(context.run_until(task, soon()).ok());
  CHECK(pair.listener->accept(soon()).ok());
  if (path_under_test() == "tcp") {
    auto own = context.listen("tcp://127.0.0.1:0");
    REQUIRE(own.ok());
    auto twice = met_twice(context, own->address());
    CHECK(context.run_until(twice, soon()).ok());
  }

  Connecting wrong = start_connect(context, "nonsense");
  REQUIRE(wrong.ready());
  CHECK(wrong.take().code() == Code::kInvalidArgument);
  if (!in_turns) return;
  Connecting cancelled = start_connect(context, pair.address);
  cancelled.cancel();
  REQUIRE(cancelled.ready());
  CHECK(cancelled.take().code() == Code::kCancelled);
  { Connecting dropped = start_connect(context, pair.address); }
  Connecting open = start_connect(context, pair.address);
  CHECK_FALSE(open.ready());
  near = Endpoint();
  pair.client = Endpoint();
  REQUIRE(pair.client_context->close(soon()).ok());
  REQUIRE(open.ready());
  CHECK(open.take().code() == Code::kCancelled);
}

TEST_CASE("a task destroyed in the middle cancels its fetch", "[contract][waiting]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    Exchanges exchanges(pair);
    {
      auto task = sum_of(exchanges.near, 2, soon());
      pair.settle();
    }
    pair.settle();
    CHECK(pair.client.counters().posted == pair.client.counters().completed);
    auto publication = exchanges.far.publish({"w0", 1}, floats(*pair.server_context, {8}, 1));
    REQUIRE(publication.ok());
    pair.settle();
    CHECK(publication->readers_done() == 0);
  }
}

}  // namespace
}  // namespace sluice::test
