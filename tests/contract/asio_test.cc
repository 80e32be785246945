// Boost.Asio programs: operations with completion tokens on an io_context that sleeps on
// the context's descriptor. Operations that end early: asio_ending_test.cc.
#include <sluice/api/asio.h>

#include <array>
#include <future>
#include <semaphore>
#include <thread>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <sluice/exchange/asio.h>
#include <sluice/fault/injector.h>

#include "tests/contract/asio_world.h"

namespace sluice::test {
namespace {

using asio::use_awaitable;

asio::awaitable<void> echo(Side& side, int rounds, size_t size) {
  for (int i = 0; i < rounds; ++i) {
    Completion got = co_await side.driver->async_receive(
        side.endpoint, {.tag = 1}, room(*side.context, size), by(soon()), use_awaitable);
    if (!got.status.ok()) throw std::runtime_error(got.status.to_string());
    Buffer back = std::move(got.buffers[0]);
    if (!back.reshape(TensorDescriptor::bytes(got.receipt.bytes)).ok())
      throw std::runtime_error("reshape");
    Completion sent = co_await side.driver->async_send(side.endpoint, 2, std::move(back).freeze(),
                                                       by(soon()), use_awaitable);
    if (!sent.status.ok()) throw std::runtime_error(sent.status.to_string());
  }
}

asio::awaitable<int> ask(Side& side, int rounds, size_t size) {
  int good = 0;
  for (int i = 0; i < rounds; ++i) {
    uint64_t seed = static_cast<uint64_t>(i);
    Completion sent = co_await side.driver->async_send(
        side.endpoint, 1, tensor(*side.context, size, seed), by(soon()), use_awaitable);
    Completion got = co_await side.driver->async_receive(
        side.endpoint, {.tag = 2}, room(*side.context, size), by(soon(), seed), use_awaitable);
    if (!sent.status.ok() || !got.status.ok()) co_return -1;
    good += got.tag == 2 && got.user_data == seed && got.receipt.bytes == size &&
                    holds(got.buffers[0].bytes(), seed)
                ? 1
                : 0;
  }
  co_return good;
}

TEST_CASE("coroutines of two contexts on one io_context echo messages", "[contract][asio]") {
  NothingLeftBehind audit;
  World world;
  for (size_t size : {size_t{1}, size_t{9000}, size_t{3'000'000}}) {
    INFO(size);
    int good = 0;
    asio::co_spawn(world.loop, echo(world.far, 10, size),
                   [](std::exception_ptr failed) { CHECK_FALSE(failed); });
    asio::co_spawn(world.near.driver->get_executor(), ask(world.near, 10, size),
                   [&](std::exception_ptr failed, int count) {
                     CHECK_FALSE(failed);
                     good = count;
                   });
    world.run();
    CHECK(good == 10);
  }
}

TEST_CASE("futures of another thread than the io_context's", "[contract][asio][threads]") {
  NothingLeftBehind audit;
  World world;
  {
    std::vector<Tensor> out;  // memory is made here: an arena is any thread's
    for (uint64_t i = 0; i < 20; ++i) out.push_back(tensor(*world.near.context, 9000, i));
    auto work = asio::make_work_guard(world.loop);
    // Two threads: the strand keeps each context to one at a time.
    std::array<std::thread, 2> threads;
    for (std::thread& thread : threads) thread = std::thread([&] { world.loop.run(); });
    for (uint64_t i = 0; i < out.size(); ++i) {
      std::future<Completion> got = world.far.driver->async_receive(world.far.endpoint, {.tag = 1},
                                                                    room(*world.far.context, 9000),
                                                                    by(soon()), asio::use_future);
      std::future<Completion> sent = world.near.driver->async_send(world.near.endpoint, 1, out[i],
                                                                   by(soon()), asio::use_future);
      CHECK(sent.get().status.ok());
      Completion completion = got.get();
      CHECK(completion.status.ok());
      CHECK(holds(completion.buffers[0].bytes(), i));
    }
    work.reset();
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_CASE("an io_context returns at once from a driver that waits for nothing",
          "[contract][asio]") {
  NothingLeftBehind audit;
  World world;
  world.near.driver->stop();  // what was never started
  world.run();
  CHECK(world.loop.stopped());
  // And again after an operation.
  bool done = false;
  world.near.driver->async_receive(world.near.endpoint, {.tag = 1}, room(*world.near.context, 10),
                                   by(in(1ms)), [&](Completion) { done = true; });
  world.run();
  CHECK(done);
  world.loop.restart();
  CHECK(world.loop.poll() == 0);
}

TEST_CASE("callbacks, deferred operations and segment lists", "[contract][asio]") {
  NothingLeftBehind audit;
  World world;
  Context& near = *world.near.context;
  std::vector<Buffer> parts;
  parts.push_back(room(near, 1000));
  parts.push_back(room(near, 5000));
  int received = 0;
  auto later = world.near.driver->async_receive(world.near.endpoint, {.tag = 3}, std::move(parts),
                                                by(soon()), asio::deferred);
  world.loop.poll();
  CHECK(world.near.endpoint.counters().posted == 0);
  std::move(later)([&](Completion c) {
    ++received;
    REQUIRE(c.status.ok());
    REQUIRE(c.buffers.size() == 2);
    CHECK(holds(c.buffers[0].bytes(), 1));
    CHECK(holds(c.buffers[1].bytes(), 2));
  });
  std::vector<Tensor> out{tensor(*world.far.context, 1000, 1), tensor(*world.far.context, 5000, 2)};
  world.far.driver->async_send(world.far.endpoint, 3, out, by(soon()), asio::detached);
  world.run();
  CHECK(received == 1);
}

TEST_CASE("one-sided reads and writes, and a target that only serves", "[contract][asio]") {
  NothingLeftBehind audit;
  World world;
  Buffer memory = filled(*world.far.context, 10'000, 1);
  auto key = world.far.endpoint.grant(memory, {.rights = Right::kReadWrite});
  REQUIRE(key.ok());
  Completion read, written;
  auto both = [&](Side& side) -> asio::awaitable<void> {
    read = co_await side.driver->async_read(side.endpoint, *key, 0, room(*side.context, 10'000),
                                            by(soon()), use_awaitable);
    written = co_await side.driver->async_write(
        side.endpoint, *key, 16, tensor(*side.context, 800, 5), by(soon()), use_awaitable);
    world.far.driver->stop();
  };
  // Nothing is outstanding at the target: it is progressed because of start().
  world.far.driver->start();
  asio::co_spawn(world.loop, both(world.near), asio::detached);
  world.run();
  CHECK(read.status.ok());
  CHECK(holds(read.buffers[0].bytes(), 1));
  CHECK(written.status.ok());
  CHECK(holds(memory.bytes().subspan(16, 800), 5));
  // Without it nobody serves.
  Completion unserved;
  world.near.driver->async_read(world.near.endpoint, *key, 0, room(*world.near.context, 100),
                                by(path_has_device() ? soon() : in(20ms)),
                                [&](Completion c) { unserved = std::move(c); });
  world.run();
  CHECK(unserved.status == (path_has_device() ? Code::kOk : Code::kTimedOut));  // a device does
  CHECK(world.far.endpoint.revoke(*key).ok());
}

TEST_CASE("many operations at once all end, once", "[contract][asio]") {
  NothingLeftBehind audit;
  World world;
  constexpr uint64_t kMany = 2000;
  std::vector<int> received(kMany, 0), sent(kMany, 0);
  int good = 0;
  for (uint64_t i = 0; i < kMany; ++i) {
    world.far.driver->async_receive(
        world.far.endpoint, {.tag = i}, room(*world.far.context, 200), by(soon(), i),
        [&](Completion c) {
          ++received[c.user_data];
          good += c.status.ok() && holds(c.buffers[0].bytes(), c.user_data) ? 1 : 0;
        });
  }
  // The last receives match first.
  for (uint64_t i = kMany; i-- > 0;) {
    world.near.driver->async_send(world.near.endpoint, i, tensor(*world.near.context, 200, i),
                                  by(soon(), i), [&](Completion c) {
                                    ++sent[c.user_data];
                                    CHECK(c.status.ok());
                                  });
  }
  world.run();
  CHECK(good == kMany);
  CHECK(received == std::vector<int>(kMany, 1));
  CHECK(sent == std::vector<int>(kMany, 1));
}

struct Answered {
  int received = 0, told = 0;
};
// Receives on a connection of its own, `count` messages; how many came, and how many of their
// senders heard so.
Answered answered(World& world, const Endpoint& there, const Endpoint& here, int count,
                  Instant deadline) {
  Answered good;
  for (int i = 0; i < count; ++i) {
    world.far.driver->async_receive(here, {.tag = 1}, room(*world.far.context, 100), by(deadline),
                                    [&](Completion c) { good.received += c.status.ok() ? 1 : 0; });
    world.near.driver->async_send(there, 1, tensor(*world.near.context, 100, 1), by(deadline),
                                  [&](Completion c) { good.told += c.status.ok() ? 1 : 0; });
  }
  world.run();
  return good;
}

TEST_CASE("answers that found no room go out although nothing is outstanding any more",
          "[contract][asio]") {
  NothingLeftBehind audit;
  World world;
  fault::inject(*world.far.context, {.seed = 1, .busy_percent = 90, .most_turns = 500});
  auto [there, here] = world.connect();
  Answered good = answered(world, there, here, 10, soon());
  CHECK(good.received == 10);
  CHECK(good.told == 10);
}

TEST_CASE("a path that never has room again does not keep an io_context from returning",
          "[contract][asio]") {
  NothingLeftBehind audit;
  World world;
  auto injector = fault::inject(*world.far.context, {.seed = 1, .busy_percent = 100});
  injector->strike_next({.call = fault::Call::kWritable, .nth = 1, .action = fault::Action::kDrop});
  auto [there, here] = world.connect();
  // Long enough to come: a message that did not leave in time would be awaited in vain.
  Answered good = answered(world, there, here, 10, in(1s));
  CHECK(good.received > 0);
  CHECK(good.told == 0);
  CHECK(injector->struck());
}

TEST_CASE("an accepted endpoint comes to the handler", "[contract][asio][threads]") {
  NothingLeftBehind audit;
  World world;
  Endpoint here;
  world.far.driver->async_accept(world.listener, soon(), [&](Result<Endpoint> endpoint) {
    REQUIRE(endpoint.ok());
    here = std::move(*endpoint);
  });
  // Connecting blocks, so it is done on a thread and with a context of its own.
  auto context = open(Waiting::kSleep);
  std::thread peer([address = world.listener.address(), &context] {
    auto there = context->connect(address);
    if (!there.ok() || !there->close(soon()).ok()) std::abort();
  });
  world.run();
  REQUIRE(here);
  Status closed = Status(Code::kInternal, Scope::kOperation, "");
  world.far.driver->async_close(std::move(here), soon(), [&](Status status) { closed = status; });
  world.run();
  peer.join();
  CHECK(closed.ok());
}

class Rounds final : public ProgressHook {
 public:
  explicit Rounds(Context& context) : context_(context) { context_.add_hook(this); }
  ~Rounds() { context_.remove_hook(this); }
  size_t progress(Instant) override {
    ++count;
    return 0;
  }
  Instant next_timeout() override { return kNever; }
  int count = 0;

 private:
  Context& context_;
};

TEST_CASE("a blocking call in a handler loses no wake-up", "[contract][asio][threads]") {
  NothingLeftBehind audit;
  asio::io_context loop;
  Side near(loop);
  auto context = open(Waiting::kSleep);
  auto listener = context->listen(fresh_address());
  REQUIRE(listener.ok());
  std::binary_semaphore asleep(0);
  // Catch belongs to the main thread: this one aborts.
  std::thread far([&, into = room(*context, 9000), ninth = tensor(*context, 100, 9)]() mutable {
    auto endpoint = listener->accept(soon());
    if (!endpoint.ok()) std::abort();
    auto got = endpoint->receive_and_wait({.tag = 1}, std::move(into), soon());
    if (!got.ok() || !endpoint->send_and_wait(2, std::move(got->buffer).freeze(), soon()).ok())
      std::abort();
    if (!asleep.try_acquire_for(20s)) std::abort();
    if (!endpoint->send(9, std::move(ninth), {.deadline = soon()}).ok()) std::abort();
    (void)context->wait_until([&] { return endpoint->state() == EndpointState::kClosed; }, soon());
  });
  auto endpoint = near.context->connect(listener->address());
  REQUIRE(endpoint.ok());
  near.endpoint = std::move(*endpoint);
  Completion nine;
  near.driver->async_receive(near.endpoint, {.tag = 9}, room(*near.context, 100), by(in(10s)),
                             [&](Completion c) { nine = std::move(c); });
  while (loop.poll() > 0) {}
  // The driver sleeps on the descriptor; this progresses the context behind its back, and
  // where messages come without a descriptor (shm) the other side then has nobody to ring.
  CHECK(near.endpoint.send_and_wait(1, tensor(*near.context, 9000, 4), soon()).ok());
  auto got = near.endpoint.receive_and_wait({.tag = 2}, room(*near.context, 9000), soon());
  CHECK(got.ok());
  {
    Rounds rounds(*near.context);
    while (loop.poll() > 0) {}
    CHECK(rounds.count > 0);  // it looked, and prepared to sleep again
  }
  asleep.release();
  loop.run();
  CHECK(nine.status.ok());
  Status closed;
  near.driver->async_close(std::move(near.endpoint), soon(),
                           [&](Status status) { closed = status; });
  loop.restart();
  loop.run();
  CHECK(closed.ok());
  far.join();
}

TEST_CASE("fetches take completion tokens", "[contract][asio]") {
  NothingLeftBehind audit;
  World world;
  {
    Exchange near(*world.near.context), far(*world.far.context);
    REQUIRE(near.add(world.near.endpoint).ok());
    REQUIRE(far.add(world.far.endpoint).ok());
    world.far.driver->start();
    float first = 0, second = 0;
    Code missing = Code::kOk, wrong = Code::kOk;
    size_t returned = 0;
    auto work = [&]() -> asio::awaitable<void> {
      auto delivery =
          co_await async_fetch(*world.near.driver, near, {"w", 1}, soon(), use_awaitable);
      if (delivery.ok()) first = delivery->value.as<float>()[3];
      Buffer into = std::move(world.near.context->allocate({8}, float32)).value();
      Placed placed = co_await async_fetch_into(*world.near.driver, near, {"w", 2}, std::move(into),
                                                soon(), use_awaitable);
      if (placed.ok()) second = placed.take_buffer().as<float>()[3];
      missing =
          (co_await async_fetch(*world.near.driver, near, {"never", 1}, in(20ms), use_awaitable))
              .code();
      Placed unfit = co_await async_fetch_into(*world.near.driver, near, {"w", 3},
                                               room(*world.near.context, 5), soon(), use_awaitable);
      wrong = unfit.code();
      returned = unfit.take_buffer().size_bytes();
      world.far.driver->stop();
    };
    asio::co_spawn(world.loop, work(), [](std::exception_ptr failed) { CHECK_FALSE(failed); });
    // Published from a handler, after the fetch has come.
    asio::post(world.far.driver->get_executor(), [&] {
      for (uint64_t step : {1, 2, 3}) {
        CHECK(far.publish({"w", step}, floats(*world.far.context, {8}, static_cast<float>(step)),
                          {.readers = until_retired})
                  .ok());
      }
      world.far.driver->schedule();
    });
    world.run();
    CHECK(first == floats(*world.near.context, {8}, 1).as<float>()[3]);
    CHECK(second == floats(*world.near.context, {8}, 2).as<float>()[3]);
    CHECK(missing == Code::kTimedOut);
    CHECK(wrong == Code::kInvalidArgument);
    CHECK(returned == 5);
  }
}

TEST_CASE("a context has one driver at a time, and what it leaves ends with the context",
          "[contract][asio]") {
  NothingLeftBehind audit;
  Code code = Code::kOk;
  World world;
  auto third = open(Waiting::kSpin);
  Endpoint endpoint;
  {
    auto driver = AsioDriver::open(world.loop, *third);
    REQUIRE(driver.ok());
    CHECK(AsioDriver::open(world.loop, *third).code() == Code::kWrongState);
    auto connected = connect_to(*third, *world.far.context, world.listener.address());
    REQUIRE(connected.ok());
    endpoint = std::move(*connected);
    driver->async_receive(endpoint, {.tag = 1}, room(*third, 10), by(soon()),
                          [&](Completion c) { code = c.status.code(); });
    world.loop.poll();
    driver->async_receive(endpoint, {.tag = 2}, room(*third, 10), by(soon()), [&](Completion) {});
  }
  CHECK(code == Code::kOk);
  {
    auto next = AsioDriver::open(world.loop, *third);
    REQUIRE(next.ok());
    bool timed_out = false;
    next->async_receive(endpoint, {.tag = 3}, room(*third, 10), by(in(5ms)),
                        [&](Completion c) { timed_out = c.status == Code::kTimedOut; });
    world.loop.restart();
    while (!timed_out) world.loop.run_one();
  }
  endpoint = Endpoint();
  (void)third->close(soon());
  third.reset();
  world.run();
  CHECK(code == Code::kCancelled);
}

TEST_CASE("a context that a driver left works without it", "[contract][asio]") {
  NothingLeftBehind audit;
  Pair pair;
  asio::io_context loop;
  {
    auto driver = AsioDriver::open(loop, *pair.client_context);
    REQUIRE(driver.ok());
    driver->start();
    loop.poll();
  }
  Box& box = pair.box();
  auto id = pair.server.receive({.tag = 1}, room(*pair.server_context, 100), box.options());
  REQUIRE(id.ok());
  REQUIRE(pair.client.send(1, tensor(*pair.client_context, 100, 3)).ok());
  CHECK(pair.wait(box, *id).status.ok());
}

}  // namespace
}  // namespace sluice::test
