// Many peers, several connections, and connections that cannot be made.
#include "tests/contract/pair.h"

#include <algorithm>

#include <optional>

#include <sluice/select/open.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::test {
namespace {

TEST_CASE("an address where nobody listens is unreachable, and the text says what to do",
          "[contract][peers]") {
  NothingLeftBehind audit;
  auto context = open();
  Instant start = now();
  auto endpoint = context->connect(deserted_address(), {.timeout = 10s});
  CHECK(endpoint.code() == Code::kUnreachable);
  CHECK_FALSE(endpoint.status().detail().empty());
  INFO(endpoint.status().to_string());
  CHECK(endpoint.status().detail().find("listen") != std::string_view::npos);
  CHECK(now() < after(start, 9s));  // not by its timeout
}

TEST_CASE("addresses that do not parse are refused with an example", "[contract][peers]") {
  NothingLeftBehind audit;
  auto context = open();
  for (const char* bad : {"", "tcp:", "tcp://", "tcp://host", "tcp://host:99999", "shm:", "shm:a/b",
                          "loopback:", "ftp://x:1", "sluice://:0x"}) {
    INFO(bad);
    auto endpoint = context->connect(bad);
    CHECK(endpoint.code() == Code::kInvalidArgument);
    CHECK(endpoint.status().detail().find("://") != std::string_view::npos);
    CHECK(context->listen(bad).code() == Code::kInvalidArgument);
  }
}

TEST_CASE("a name can be taken once, and again after the listener closed", "[contract][peers]") {
  NothingLeftBehind audit;
  auto context = open();
  std::string address = fresh_address();
  auto first = context->listen(address);
  REQUIRE(first.ok());
  std::string actual = first->address();
  auto second = context->listen(actual);
  CHECK_FALSE(second.ok());
  CHECK_FALSE(second.status().detail().empty());
  first->close();
  *first = Listener();
  auto third = context->listen(actual);
  INFO(third.status().to_string());
  CHECK(third.ok());
}

TEST_CASE("accept without a peer is kTryAgain at once and kTimedOut at its deadline",
          "[contract][peers]") {
  NothingLeftBehind audit;
  auto context = open(Waiting::kSleep);
  auto listener = context->listen(fresh_address());
  REQUIRE(listener.ok());
  CHECK(listener->try_accept().code() == Code::kTryAgain);
  Instant deadline = in(10ms);
  CHECK(listener->accept(deadline).code() == Code::kTimedOut);
  CHECK(now() >= deadline);
}

TEST_CASE("a listener that closes with peers waiting ends them", "[contract][peers]") {
  NothingLeftBehind audit;
  for (const int turns_before : {0, 200}) {
    INFO(turns_before);
    auto near = open(), far = open();
    auto listener = far->listen(fresh_address());
    REQUIRE(listener.ok());
    auto client = connect_to(*near, *far, listener->address());
    REQUIRE(client.ok());
    for (int turn = 0; turn < turns_before; ++turn) (void)(near->progress() + far->progress());
    *listener = Listener();
    far->progress();
    Instant limit = soon();
    while (client->state() != EndpointState::kClosed && now() < limit) {
      near->progress();
      far->progress();
    }
    CHECK(client->state() == EndpointState::kClosed);
  }
}

TEST_CASE("requirements that the path cannot meet are refused with the reason",
          "[contract][peers]") {
  NothingLeftBehind audit;
  auto near = open(), far = open();
  auto listener = far->listen(fresh_address());
  REQUIRE(listener.ok());
  ProgressOther hook;
  hook.other = far.get();
  near->add_hook(&hook);
  // Of RDMA, what the device is decides: soft-RoCE's kernel copies, and says so.
  const int copies_of_bulk = path_under_test() == "xdp" ? 4 : path_is_slp() ? 3 : 2;
  bool copies = path_copies();
  auto strict = near->connect(listener->address(), {.require = zero_copy});
  CHECK(strict.ok() == !copies);
  if (copies) {
    CHECK(strict.code() == Code::kUnsupported);
    INFO(strict.status().to_string());
    CHECK(strict.status().detail().find("cop") != std::string_view::npos);
  }
  CHECK(near->connect(listener->address(), {.require = max_copies(copies_of_bulk)}).ok());
  auto by_rdma = near->connect(listener->address(), {.require = rdma});
  CHECK(by_rdma.ok() == path_has_device());
  if (!by_rdma.ok()) {
    CHECK(by_rdma.code() == Code::kUnsupported);
    CHECK_FALSE(by_rdma.status().detail().empty());
  }
  // What was refused has left the listener in order.
  Instant limit = soon();
  Result<Endpoint> accepted = listener->try_accept();
  while (!accepted.ok() && now() < limit) {
    near->progress();
    accepted = listener->try_accept();
  }
  CHECK(accepted.ok());
  near->remove_hook(&hook);
}

TEST_CASE("an endpoint says which path it is and why", "[contract][peers]") {
  NothingLeftBehind audit;
  Pair pair;
  const Path expected = expected_path();
  for (Endpoint* endpoint : {&pair.client, &pair.server}) {
    EndpointInfo info = endpoint->info();
    CHECK(info.path.path == expected);
    CHECK_FALSE(info.reason.empty());
    CHECK_FALSE(info.peer.empty());
    CHECK(info.peer_incarnation != 0);
    CHECK_FALSE(info.peer_silent);
  }
}

TEST_CASE("sixteen peers at one listener: each gets its own messages", "[contract][peers]") {
  NothingLeftBehind audit;
  auto server = open();
  auto listener = server->listen(fresh_address(), {});
  REQUIRE(listener.ok());
  struct Peer {
    std::unique_ptr<Context> context;
    Endpoint near, far;
  };
  std::deque<Box> boxes;
  std::vector<Peer> peers;
  for (int i = 0; i < 16; ++i) {
    Peer peer;
    peer.context = open(Waiting::kSpin, {.limit_bytes = 16u << 20,
                                         .first_extent_bytes = 2u << 20,
                                         .receive_reserve_bytes = 1u << 20});
    auto near = connect_to(*peer.context, *server, listener->address());
    REQUIRE(near.ok());
    peer.near = std::move(near).value();
    auto far = listener->accept(soon());
    REQUIRE(far.ok());
    peer.far = std::move(far).value();
    peers.push_back(std::move(peer));
  }
  auto run = [&](const std::function<bool()>& done) {
    Instant limit = soon();
    while (!done() && now() < limit) {
      server->progress();
      for (Peer& peer : peers) {
        if (peer.context) peer.context->progress();
      }
    }
    return done();
  };
  auto exchange = [&](size_t size) {
    Box& box = boxes.emplace_back();
    size_t expected = 0;
    for (size_t i = 0; i < peers.size(); ++i) {
      if (!peers[i].near) continue;
      REQUIRE(peers[i].far.receive({.tag = 1}, room(*server, size), box.options(i)).ok());
      REQUIRE(peers[i]
                  .near.receive({.tag = 1}, room(*peers[i].context, size), box.options(i + 100))
                  .ok());
      REQUIRE(peers[i].near.send(1, tensor(*peers[i].context, size, i)).ok());
      REQUIRE(peers[i].far.send(1, tensor(*server, size, i + 100)).ok());
      expected += 2;
    }
    REQUIRE(run([&] { return box.all.size() == expected; }));
    for (Completion& completion : box.all) {
      REQUIRE(completion.status.ok());
      CHECK(holds(completion.buffers[0].bytes(), completion.user_data));
    }
    box.all.clear();
    // What was lent is home: a context that ends while a peer may still read never uses that memory
    // again.
    REQUIRE(run([&] {
      return std::all_of(peers.begin(), peers.end(), [](const Peer& peer) {
        return !peer.near || (peer.near.counters().loans_outstanding == 0 &&
                              peer.far.counters().loans_outstanding == 0);
      });
    }));
  };
  exchange(100);
  exchange(200'000);
  // They go in any order: by close, by drop, with their context; the others go on.
  for (size_t gone : {7, 0, 15, 8}) {
    if (gone % 2 == 0) {
      peers[gone].near.core().start_close();
      REQUIRE(run([&] { return peers[gone].near.state() == EndpointState::kClosed; }));
    }
    peers[gone].near = Endpoint();
    if (gone == 15) peers[gone].context.reset();
    REQUIRE(run([&] { return peers[gone].far.state() == EndpointState::kClosed; }));
    peers[gone].far = Endpoint();
    exchange(5000);
  }
  // And come back.
  auto again = connect_to(*peers[0].context, *server, listener->address());
  REQUIRE(again.ok());
  peers[0].near = std::move(again).value();
  auto far = listener->accept(soon());
  REQUIRE(far.ok());
  peers[0].far = std::move(far).value();
  exchange(100);
}

TEST_CASE("several connections between the same two contexts are independent",
          "[contract][peers]") {
  NothingLeftBehind audit;
  Pair pair;
  std::vector<std::pair<Endpoint, Endpoint>> more;
  for (int i = 0; i < 4; ++i) more.push_back(pair.connect_again());
  // The same tag on each; the last connection is used first.
  for (size_t i = more.size(); i-- > 0;) {
    REQUIRE(more[i].first.send(1, tensor(*pair.client_context, 20'000, i)).ok());
  }
  for (size_t i = 0; i < more.size(); ++i) {
    auto got =
        more[i].second.receive_and_wait({.tag = 1}, room(*pair.server_context, 20'000), soon());
    REQUIRE(got.ok());
    CHECK(holds(got->buffer.bytes(), i));
  }
  // One ends with an operation outstanding; the others do not notice.
  Box& box = pair.box();
  REQUIRE(more[1].first.receive({.tag = 1}, room(*pair.client_context, 10), box.options()).ok());
  more[1].second = Endpoint();
  REQUIRE(pair.until([&] { return more[1].first.state() == EndpointState::kClosed; }));
  CHECK(box.all.size() == 1);
  REQUIRE(more[2].first.send(2, tensor(*pair.client_context, 10, 2)).ok());
  CHECK(more[2].second.receive_and_wait({.tag = 2}, room(*pair.server_context, 10), soon()).ok());
}

TEST_CASE("contexts that share an arena exchange messages as others do", "[contract][peers]") {
  NothingLeftBehind audit;
  Pair pair({.same_arena = true});
  REQUIRE(pair.client.send(1, tensor(*pair.client_context, 300'000, 1)).ok());
  auto got = pair.server.receive_and_wait({.tag = 1}, room(*pair.server_context, 300'000), soon());
  REQUIRE(got.ok());
  CHECK(holds(got->buffer.bytes(), 1));
}

TEST_CASE("a context can connect to itself", "[contract][peers]") {
  NothingLeftBehind audit;
  auto context = open();
  auto listener = context->listen(fresh_address());
  REQUIRE(listener.ok());
  auto near = context->connect(listener->address());
  INFO(near.status().to_string());
  REQUIRE(near.ok());
  auto far = listener->accept(soon());
  REQUIRE(far.ok());
  REQUIRE(near->send(1, tensor(*context, 100'000, 1)).ok());
  {
    auto got = far->receive_and_wait({.tag = 1}, room(*context, 100'000), soon());
    REQUIRE(got.ok());
    CHECK(holds(got->buffer.bytes(), 1));
  }
  CHECK(near->close(soon()).ok());
  CHECK(far->close(soon()).ok());
  CHECK(context->arena().statistics().outstanding == 0);
}

TEST_CASE("a peer that does not call progress is reported silent and stays connected",
          "[contract][peers]") {
  NothingLeftBehind audit;
  Pair pair;
  pair.settle();
  pair.freeze_server();
  Box& box = pair.box();
  REQUIRE(pair.client.receive({.tag = 1}, room(*pair.client_context, 10), box.options(0, in(60s)))
              .ok());
  REQUIRE(pair.client_context->wait_until([&] { return pair.client.info().peer_silent; }, in(15s))
              .ok());
  CHECK(pair.client.state() == EndpointState::kConnected);
  CHECK(box.all.empty());
  pair.thaw_server();
  REQUIRE(pair.until([&] { return !pair.client.info().peer_silent; }));
  REQUIRE(pair.server.send(1, tensor(*pair.server_context, 10, 1)).ok());
  CHECK(pair.until([&] { return box.all.size() == 1; }));
}

}  // namespace
}  // namespace sluice::test
