// Asio operations that end before they are done: by deadline, by cancellation, by refusal; and a
// close that the peer does not answer.
#include <sluice/api/asio.h>

#include <memory>
#include <utility>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <sluice/exchange/asio.h>
#include <sluice/spi/endpoint_core.h>

#include "tests/contract/asio_world.h"

namespace sluice::test {
namespace {

using asio::use_awaitable;

TEST_CASE("an operation ends by its deadline, and its buffer comes back", "[contract][asio]") {
  NothingLeftBehind audit;
  World world;
  Instant deadline = in(30ms);
  int ended = 0;
  world.near.driver->async_receive(world.near.endpoint, {.tag = 1}, room(*world.near.context, 100),
                                   by(deadline, 7), [&](Completion c) {
                                     ++ended;
                                     CHECK(c.status == Code::kTimedOut);
                                     CHECK(now() >= deadline);
                                     CHECK(c.user_data == 7);
                                     REQUIRE(c.buffers.size() == 1);
                                     CHECK(c.buffers[0].size_bytes() == 100);
                                   });
  world.far.driver->async_accept(world.listener, deadline, [&](Result<Endpoint> endpoint) {
    ++ended;
    CHECK(endpoint.code() == Code::kTimedOut);
    CHECK(now() >= deadline);
  });
  CHECK(ended == 0);
  world.run();
  CHECK(ended == 2);
}

TEST_CASE("a signal cancels its operation alone", "[contract][asio]") {
  NothingLeftBehind audit;
  World world;
  asio::cancellation_signal receive_signal, other_signal, accept_signal;
  int ended = 0, other = 0;
  world.near.driver->async_receive(
      world.near.endpoint, {.tag = 1}, room(*world.near.context, 64), by(soon()),
      asio::bind_cancellation_slot(receive_signal.slot(), [&](Completion c) {
        ++ended;
        CHECK(c.status == Code::kCancelled);
        CHECK((c.buffers.size() == 1 && c.buffers[0].size_bytes() == 64));
      }));
  world.near.driver->async_receive(
      world.near.endpoint, {.tag = 5}, room(*world.near.context, 64), by(soon()),
      asio::bind_cancellation_slot(other_signal.slot(), [&](Completion c) {
        ++other;
        CHECK(c.status.ok());
      }));
  world.far.driver->async_accept(
      world.listener, soon(),
      asio::bind_cancellation_slot(accept_signal.slot(), [&](Result<Endpoint> endpoint) {
        ++ended;
        CHECK(endpoint.code() == Code::kCancelled);
      }));
  world.loop.poll();
  CHECK(ended == 0);
  other_signal.emit(asio::cancellation_type::total);  // more than a receive under way can promise
  receive_signal.emit(asio::cancellation_type::terminal);
  accept_signal.emit(asio::cancellation_type::partial);
  CHECK(ended == 0);  // never from inside
  while (ended < 2) world.loop.run_one();
  CHECK(other == 0);
  receive_signal.emit(asio::cancellation_type::terminal);  // over: nobody listens
  world.far.driver->async_send(world.far.endpoint, 5, tensor(*world.far.context, 64, 1), by(soon()),
                               [](Completion c) { CHECK(c.status.ok()); });
  world.run();
  CHECK(other == 1);
  CHECK(ended == 2);
}

TEST_CASE("a coroutine cancelled from outside ends with its operation's status",
          "[contract][asio]") {
  NothingLeftBehind audit;
  World world;
  asio::cancellation_signal signal;
  Code code = Code::kOk;
  auto waits = [](Side& side) -> asio::awaitable<Code> {
    Completion got = co_await side.driver->async_receive(
        side.endpoint, {.tag = 1}, room(*side.context, 10), by(soon()), use_awaitable);
    co_return got.status.code();
  };
  asio::co_spawn(world.loop, waits(world.near),
                 asio::bind_cancellation_slot(
                     signal.slot(), [&](std::exception_ptr, Code ended) { code = ended; }));
  world.loop.poll();
  signal.emit(asio::cancellation_type::terminal);
  world.run();
  CHECK(code == Code::kCancelled);
}

TEST_CASE("what an endpoint refuses comes to the handler, later and with the buffer",
          "[contract][asio]") {
  NothingLeftBehind audit;
  World world;
  {
    auto [there, here] = world.connect();
    here = Endpoint();
    int ended = 0;
    std::shared_ptr<EndpointCore> core = there.shared();
    world.near.driver->async_receive(
        there, {.tag = 1}, room(*world.near.context, 10), by(soon()), [&](Completion c) {
          ++ended;
          CHECK_FALSE(c.status.ok());
          // Now it is closed.
          world.near.driver->async_receive(there, {.tag = 1}, room(*world.near.context, 33),
                                           by(soon()), [&](Completion refused) {
                                             ++ended;
                                             CHECK(refused.status == Code::kWrongState);
                                             REQUIRE(refused.buffers.size() == 1);
                                             CHECK(refused.buffers[0].size_bytes() == 33);
                                           });
          CHECK(ended == 1);
        });
    world.run();
    CHECK(ended == 2);
    CHECK(core->counters().posted == core->counters().completed);
  }
}

TEST_CASE("a close that the peer does not answer ends by its deadline, or when cancelled",
          "[contract][asio]") {
  NothingLeftBehind audit;
  World world;
  auto [a, far_a] = world.connect();
  auto [b, far_b] = world.connect();
  asio::cancellation_signal signal;
  Code late = Code::kOk, cancelled = Code::kOk;
  // The far context has nothing outstanding, so nobody progresses it.
  world.near.driver->async_close(std::move(a), in(20ms),
                                 [&](Status status) { late = status.code(); });
  world.near.driver->async_close(std::move(b), soon(),
                                 asio::bind_cancellation_slot(signal.slot(), [&](Status status) {
                                   cancelled = status.code();
                                 }));
  world.loop.restart();
  while (late == Code::kOk) world.loop.run_one();
  CHECK(late == Code::kTimedOut);
  signal.emit(asio::cancellation_type::terminal);
  world.run();
  CHECK(cancelled == Code::kCancelled);
}

TEST_CASE("a fetch is cancelled by its handler's slot, asked or not", "[contract][asio]") {
  NothingLeftBehind audit;
  World world;
  {
    Exchange near(*world.near.context), alone(*world.far.context);
    REQUIRE(near.add(world.near.endpoint).ok());
    world.far.driver->start();
    int ended = 0;
    for (auto [side, exchange] : {std::pair(&world.near, &near), std::pair(&world.far, &alone)}) {
      asio::cancellation_signal signal;
      async_fetch(
          *side->driver, *exchange, {"never", 1}, soon(),
          asio::bind_cancellation_slot(signal.slot(), [&](Result<Delivery<Tensor>> delivery) {
            ++ended;
            CHECK(delivery.code() == Code::kCancelled);
          }));
      world.loop.restart();
      world.loop.poll();
      int before = ended;
      signal.emit(asio::cancellation_type::terminal);
      while (ended == before) world.loop.run_one();
    }
    CHECK(ended == 2);
    world.far.driver->stop();
    world.run();
  }
}

}  // namespace
}  // namespace sluice::test
