// What a listener says to those whom it does not take: limits, the program's hook, requirements.
#include "tests/contract/pair.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sluice/api/connecting.h>
#include <sluice/api/progress_hook.h>
#include <sluice/base/counters.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::test {
namespace {

// A listener whose clients come one by one. Both contexts run until quiet between steps.
struct World {
  explicit World(const ListenOptions& options) : server(open()), client(open()) {
    auto opened = server->listen(fresh_address(), options);
    INFO(opened.status().to_string());
    REQUIRE(opened.ok());
    listener = std::move(opened).value();
  }
  struct Outcome {
    Endpoint client, server;  // server: none if it was not taken
    Status refusal;
  };
  Outcome come() {
    Outcome outcome;
    auto endpoint =
        connect_to(*client, *server, listener.address(), {.timeout = std::chrono::seconds(10)});
    if (!endpoint.ok()) {
      outcome.refusal = endpoint.status();
      return outcome;
    }
    outcome.client = std::move(endpoint).value();
    auto over = [&] { return outcome.client.state() != EndpointState::kConnected; };
    const bool decided = until([&] {
      if (auto taken = listener.try_accept(); taken.ok()) outcome.server = std::move(taken).value();
      return outcome.server || over();
    });
    REQUIRE(decided);
    if (!outcome.server) outcome.refusal = reason_of(outcome.client);
    return outcome;
  }
  bool until(const std::function<bool()>& done) {
    const Instant deadline = soon();
    while (!done()) {
      if (now() > deadline) return false;
      server->progress();
      client->progress();
    }
    return true;
  }
  // Why an endpoint is over: what an operation on it says.
  Status reason_of(Endpoint& endpoint) {
    until([&] { return endpoint.state() == EndpointState::kClosed; });
    auto posted = endpoint.send(1, tensor(*client, 8, 1));
    REQUIRE_FALSE(posted.ok());
    return posted.status();
  }
  bool carries(Outcome& pair) {
    Box there, here;
    auto received = pair.server.receive({.tag = 7}, room(*server, 64), there.options());
    REQUIRE(received.ok());
    auto sent = pair.client.send(7, tensor(*client, 64, 3), here.options());
    return sent.ok() &&
           until([&] { return there.count(*received) == 1 && here.count(*sent) == 1; }) &&
           there.find(*received)->status.ok();
  }
  void close(Outcome& pair) {
    pair.client.core().start_close();
    until([&] {
      return pair.client.state() == EndpointState::kClosed &&
             pair.server.state() == EndpointState::kClosed;
    });
  }
  std::unique_ptr<Context> server, client;
  Listener listener;
};

bool says(const Status& status, std::string_view text) {
  return status.to_string().find(text) != std::string::npos;
}

TEST_CASE(
    "a listener with all its connections refuses one more, and takes it when another has ended",
    "[contract][listener]") {
  NothingLeftBehind audit;
  World world({.max_connections = 2});
  World::Outcome first = world.come(), second = world.come();
  REQUIRE(first.server);
  REQUIRE(second.server);
  World::Outcome third = world.come();
  INFO(third.refusal.to_string());
  CHECK_FALSE(third.server);
  CHECK(says(third.refusal, "as many"));
  // Of a flood the words may be lost, but nobody is taken and nothing stays.
  for (int i = 0; i < 20; ++i) {
    World::Outcome next = world.come();
    CHECK_FALSE(next.server);
    CHECK_FALSE(next.refusal.ok());
  }
  CHECK(world.carries(first));
  CHECK(world.carries(second));
  world.close(first);
  World::Outcome fourth = world.come();
  INFO(fourth.refusal.to_string());
  REQUIRE(fourth.server);
  CHECK(world.carries(fourth));
}

TEST_CASE("a peer with as many connections as ListenOptions gives one peer is refused",
          "[contract][listener]") {
  NothingLeftBehind audit;
  World world({.max_connections_by_address = 1});
  World::Outcome first = world.come();
  REQUIRE(first.server);
  World::Outcome second = world.come();
  CHECK_FALSE(second.server);
  CHECK(says(second.refusal, "as many"));
  CHECK(world.carries(first));
}

// A caller may arrive at any moment. This one calls inside a turn of accept(), and reports that
// turn as idle.
struct CallsInATurn final : ProgressHook {
  CallsInATurn(Context& from, std::string to) : context(from), address(std::move(to)) {}
  size_t progress(Instant) override {
    if (!call) call.emplace(start_connect(context, address));
    context.progress();
    return 0;
  }
  Instant next_timeout() override { return from_now(std::chrono::milliseconds(1)); }
  Context& context;
  std::string address;
  std::optional<Connecting> call;
};

TEST_CASE("a caller who comes while accept() looks is not lost", "[contract][listener]") {
  NothingLeftBehind audit;
  World world({});
  for (int i = 0; i < 3; ++i) {
    CallsInATurn caller(*world.client, world.listener.address());
    world.server->add_hook(&caller);
    auto endpoint = world.listener.accept(soon());
    const bool connected = world.until([&] { return caller.call && caller.call->ready(); });
    world.server->remove_hook(&caller);
    INFO(endpoint.status().to_string());
    REQUIRE(endpoint.ok());
    REQUIRE(connected);
    auto client = caller.call->take();
    REQUIRE(client.ok());
    World::Outcome pair{std::move(*client), std::move(*endpoint), {}};
    CHECK(world.carries(pair));
    world.close(pair);
  }
}

TEST_CASE("what a peer sends before it is accepted comes once, in order, and more after it",
          "[contract][listener]") {
  NothingLeftBehind audit;
  World world({});
  World::Outcome pair;
  auto endpoint = connect_to(*world.client, *world.server, world.listener.address());
  REQUIRE(endpoint.ok());
  pair.client = std::move(endpoint).value();
  Box sent, received;
  for (uint64_t seed = 1; seed <= 3; ++seed)
    REQUIRE(pair.client.send(7, tensor(*world.client, 64, seed), sent.options()).ok());
  for (int turn = 0; turn < 2000; ++turn) {  // it lies at the other end by then, or waits
    world.client->progress();
    world.server->progress();
  }
  REQUIRE(world.until([&] {
    if (auto taken = world.listener.try_accept(); taken.ok())
      pair.server = std::move(taken).value();
    return static_cast<bool>(pair.server);
  }));
  for (int i = 0; i < 3; ++i)
    REQUIRE(pair.server.receive({.tag = 7}, room(*world.server, 64), received.options()).ok());
  REQUIRE(world.until([&] { return received.all.size() == 3 && sent.all.size() == 3; }));
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Completion& completion = received.all[seed - 1];
    REQUIRE(completion.status.ok());
    REQUIRE(completion.buffers.size() == 1);
    CHECK(holds(completion.buffers[0].bytes(), seed));
  }
  // More than once: what is handed on a second time ends the connection a turn later.
  for (int i = 0; i < 3; ++i) CHECK(world.carries(pair));
}

TEST_CASE("the program is asked about each peer, and its no is told to the peer",
          "[contract][listener]") {
  NothingLeftBehind audit;
  bool welcome = false;
  std::vector<std::string> asked;
  std::vector<uint64_t> incarnations;
  World world({.accept = [&](const PeerIntroduction& who) {
    asked.emplace_back(who.address);
    incarnations.push_back(who.incarnation);
    return welcome;
  }});
  World::Outcome first = world.come();
  INFO(first.refusal.to_string());
  CHECK_FALSE(first.server);
  CHECK((first.refusal == Code::kAccessDenied || says(first.refusal, "does not accept us")));
  REQUIRE(asked.size() == 1);
  CHECK_FALSE(asked[0].empty());
  CHECK(incarnations[0] != 0);
  welcome = true;
  World::Outcome second = world.come();
  REQUIRE(second.server);
  CHECK(world.carries(second));
  REQUIRE(asked.size() >= 2);
  CHECK(asked.back() == second.server.info().peer);
}

TEST_CASE("a connection that nobody uses for the listener's idle limit is closed with the reason",
          "[contract][listener]") {
  NothingLeftBehind audit;
  World world({.idle_limit = 1s});
  const uint64_t closed = read_counter("session.idle_closed");
  World::Outcome pair = world.come();
  REQUIRE(pair.server);
  CHECK(world.carries(pair));
  CHECK(world.until([&] {
    return pair.server.state() == EndpointState::kClosed &&
           pair.client.state() == EndpointState::kClosed;
  }));
  CHECK(read_counter("session.idle_closed") == closed + 1);
  CHECK(
      says(pair.server.send(1, tensor(*world.server, 8, 1)).status(), "ListenOptions::idle_limit"));
}

// Nobody is accepted on a path that cannot do what the listener requires: it refuses to listen, or
// refuses who comes.
void requires_in_vain(const Requirements& require) {
  auto server = open();
  auto client = open();
  ListenOptions options;
  options.require = require;
  auto listener = server->listen(fresh_address(), options);
  if (!listener.ok()) {
    CHECK(listener.code() == Code::kUnsupported);
    CHECK_FALSE(listener.status().detail().empty());
    return;
  }
  auto endpoint =
      connect_to(*client, *server, listener->address(), {.timeout = std::chrono::seconds(10)});
  std::optional<Endpoint> accepted;
  auto over = [&] { return !endpoint.ok() || endpoint->state() != EndpointState::kConnected; };
  const Instant deadline = soon();
  while (!over() && !accepted && now() < deadline) {
    server->progress();
    client->progress();
    if (auto taken = listener->try_accept(); taken.ok()) accepted = std::move(taken).value();
  }
  CHECK_FALSE(accepted.has_value());
  CHECK(over());
}

TEST_CASE("a listener that requires RDMA accepts nobody on a path without it",
          "[contract][listener]") {
  if (path_has_device()) return;
  NothingLeftBehind audit;
  requires_in_vain(rdma);
}

TEST_CASE("a listener that requires no copies accepts nobody on a path that copies",
          "[contract][listener]") {
  if (!path_copies()) return;
  NothingLeftBehind audit;
  requires_in_vain(zero_copy);
}

TEST_CASE(
    "a listener that requires sealed paths accepts nobody whose bytes cross a wire in the clear",
    "[contract][listener]") {
  NothingLeftBehind audit;
  if (!path_is_sealed()) return requires_in_vain(sealed);
  World world({.require = sealed});
  World::Outcome pair = world.come();
  INFO(pair.refusal.to_string());
  REQUIRE(pair.server);
  CHECK(pair.server.info().path.capabilities.has(Capability::kSealed));
  CHECK(pair.client.info().path.capabilities.has(Capability::kSealed));
  CHECK(world.carries(pair));
}

TEST_CASE("a caller that requires a sealed path gets none whose bytes cross a wire in the clear",
          "[contract][listener]") {
  if (path_is_sealed()) return;
  NothingLeftBehind audit;
  World world({});
  auto endpoint = connect_to(*world.client, *world.server, world.listener.address(),
                             {.require = sealed, .timeout = std::chrono::seconds(10)});
  INFO(endpoint.status().to_string());
  CHECK(endpoint.code() == Code::kUnsupported);
  CHECK(says(endpoint.status(), "not sealed"));
}

}  // namespace
}  // namespace sluice::test
