// Two contexts on one io_context, each with its driver, connected.
#ifndef SLUICE_TESTS_CONTRACT_ASIO_WORLD_H_
#define SLUICE_TESTS_CONTRACT_ASIO_WORLD_H_

#include <sluice/api/asio.h>
#include <sluice/spi/endpoint_core.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/contract/pair.h"

namespace sluice::test {

namespace asio = boost::asio;

inline PostOptions by(Instant deadline, uint64_t user_data = 0) {
  return {.user_data = user_data, .deadline = deadline, .level = Level::kPlaced};
}

// One context with its driver, which sleeps in the io_context. Only connect() spins: it
// must where both ends are this thread's.
struct Side {
  explicit Side(asio::io_context& loop)
      : context(open(Waiting::kSpin)), driver(AsioDriver::open(loop, *context)) {
    INFO(driver.status().to_string());
    REQUIRE(driver.ok());
  }
  std::unique_ptr<Context> context;
  Result<AsioDriver> driver;
  Endpoint endpoint;
};

// Two contexts on one io_context, connected.
struct World {
  World() : near(loop), far(loop) {
    auto listening = far.context->listen(fresh_address());
    REQUIRE(listening.ok());
    listener = std::move(*listening);
    std::tie(near.endpoint, far.endpoint) = connect();
  }
  std::pair<Endpoint, Endpoint> connect() {
    auto there = connect_to(*near.context, *far.context, listener.address());
    INFO(there.status().to_string());
    REQUIRE(there.ok());
    ProgressOther hook;
    hook.other = near.context.get();
    far.context->add_hook(&hook);
    auto here = listener.accept(soon());
    far.context->remove_hook(&hook);
    REQUIRE(here.ok());
    return {std::move(*there), std::move(*here)};
  }
  // Runs until nothing is outstanding: run() returns by itself.
  void run() {
    loop.restart();
    loop.run();
  }
  ~World() {
    std::vector<Status> ends;
    for (Side* side : {&near, &far}) {
      if (!side->endpoint) continue;
      std::shared_ptr<EndpointCore> core = side->endpoint.shared();
      side->driver->async_close(std::move(side->endpoint), soon(), [&ends, core](Status status) {
        CHECK(core->counters().posted == core->counters().completed);
        ends.push_back(status);
      });
    }
    run();
    for (const Status& end : ends) CHECK(end.ok());
    listener = Listener();
  }

  asio::io_context loop;
  Side near, far;
  Listener listener;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_CONTRACT_ASIO_WORLD_H_
