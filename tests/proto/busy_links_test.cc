// A turn looks at the links on which something came, however many others there are.
#include <catch2/catch.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/base/counters.h>
#include <sluice/select/open.h>

#include "tests/support/fresh_name.h"

namespace sluice {
namespace {

Instant soon() { return after(now(), std::chrono::seconds(60)); }

struct Count final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override {
    ok += completion.status.ok() ? 1 : 0;
  }
  PostOptions options() { return {.sink = this, .deadline = soon()}; }
  uint64_t ok = 0;
};

Buffer room(Context& context) {
  auto buffer = context.allocate({64}, uint8);
  REQUIRE(buffer.ok());
  return std::move(*buffer);
}

TEST_CASE("of a thousand connections a turn looks at the busy one", "[loopback]") {
  constexpr int kIdle = 1000;
  constexpr uint64_t kMessages = 100;
  ContextOptions options;
  options.peer_limits.connections = {4096, 4096};
  auto context = open_context(options);
  REQUIRE(context.ok());
  const std::string address = test::fresh_name("loopback:busy");
  ListenOptions listening;
  listening.max_connections = listening.max_connections_by_address = 4096;
  auto listener = (*context)->listen(address, listening);
  REQUIRE(listener.ok());
  std::vector<std::pair<Endpoint, Endpoint>> open;
  for (int i = 0; i <= kIdle; ++i) {
    auto near = (*context)->connect(address);
    REQUIRE(near.ok());
    auto far = listener->accept(soon());
    REQUIRE(far.ok());
    open.emplace_back(std::move(*near), std::move(*far));
  }
  for (int i = 0; i < 100; ++i) (*context)->progress();
  const uint64_t before = read_counter("loopback.links_polled");
  for (int i = 0; i < 1000; ++i) (*context)->progress();
  CHECK(read_counter("loopback.links_polled") == before);
  Count sent, received;
  for (uint64_t i = 0; i < kMessages; ++i) {
    auto& [near, far] = open[i % 3];
    REQUIRE(far.receive({.tag = 1}, room(**context), received.options()).ok());
    REQUIRE(near.send(1, room(**context).freeze(), sent.options()).ok());
    while (received.ok <= i) (*context)->progress();
  }
  // A message, and what it gives back of credit.
  CHECK(read_counter("loopback.links_polled") - before <= 4 * kMessages);
  // Whoever ends is heard, and the rest goes on.
  for (int i = 0; i < kIdle; ++i) open[static_cast<size_t>(i)].first = Endpoint();
  for (int i = 0; i < 10; ++i) (*context)->progress();
  for (int i = 0; i < kIdle; ++i)
    CHECK(open[static_cast<size_t>(i)].second.state() != EndpointState::kConnected);
  CHECK(open.back().second.state() == EndpointState::kConnected);
}

}  // namespace
}  // namespace sluice
