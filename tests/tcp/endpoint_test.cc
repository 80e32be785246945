// Whole endpoints over loopback: two contexts, one thread each, every byte verified.
#include <algorithm>
#include <functional>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include <sluice/api/connecting.h>
#include <sluice/base/counters.h>
#include "tests/tcp/testing_endpoints.h"

namespace sluice::tcp {
namespace {

using namespace testing;

const std::vector<size_t> kSizes = {
    0,     1,      7,       64,      4096,          16383,           16384,
    16385, 100000, 1 << 20, 1048577, (4 << 20) + 3, size_t{64} << 20};

// Sends back what comes, a message per size.
void echo(Node& node, Endpoint& endpoint) {
  for (size_t i = 0; i < kSizes.size(); ++i) {
    auto got = endpoint.receive_and_wait({.tag = i}, allocate(*node.context, kSizes[i]), soon());
    must(got.status(), "receive");
    must(got->receipt.bytes == kSizes[i], "wrong length");
    must(endpoint.send_and_wait(1000 + i, std::move(got->buffer).freeze(), soon()).status(),
         "send");
  }
  must(endpoint.close(soon()), "close");
}

TEST_CASE("messages of every size go there and back whole", "[tcp][endpoint]") {
  DescriptorAudit audit;
  for (const char* at : {"tcp://127.0.0.1:0", "tcp://[::1]:0"}) {
    PeerThread peer(echo, at);
    Node node;
    auto endpoint = node.context->connect(peer.address);
    REQUIRE(endpoint.ok());
    for (size_t i = 0; i < kSizes.size(); ++i) {
      Buffer sent = allocate(*node.context, kSizes[i]), kept = allocate(*node.context, kSizes[i]);
      fill(sent, i);
      fill(kept, i);
      auto receipt = endpoint->send_and_wait(i, std::move(sent).freeze(), soon());
      REQUIRE(receipt.ok());
      CHECK(receipt->bytes == kSizes[i]);
      CHECK(receipt->path == Path::kTcp);
      auto got =
          endpoint->receive_and_wait({.tag = 1000 + i}, allocate(*node.context, kSizes[i]), soon());
      REQUIRE(got.ok());
      INFO(kSizes[i] << " bytes");
      CHECK(same(got->buffer, kept));
      if (kSizes[i] > 16384) CHECK(got->receipt.copied_bytes == 0);
    }
    CHECK(endpoint->info().path.path == Path::kTcp);
    CHECK(endpoint->info().peer == peer.address);
    CHECK(endpoint->close(soon()).ok());
  }
}

// Waits inside a completion while the peer sends the next message, so that epoll reports it there.
struct WaitsInside final : CompletionSink {
  Context* context = nullptr;
  std::function<void()> peer_sends;
  void on_completion(Completion&& completion) noexcept override {
    must(completion.status, "receive");
    ++received;
    if (auto send = std::exchange(peer_sends, {})) {
      send();
      for (int i = 0; i < 5; ++i) (void)context->wait(from_now(std::chrono::milliseconds(2)));
    }
  }
  int received = 0;
};

TEST_CASE("what comes while a completion waits is not forgotten", "[tcp][endpoint]") {
  DescriptorAudit audit;
  Node near(Waiting::kSleep), far(Waiting::kSleep);
  auto listener = far.context->listen("tcp://127.0.0.1:0");
  REQUIRE(listener.ok());
  Connecting connecting = start_connect(*near.context, listener->address());
  std::optional<Endpoint> server;
  for (const Instant end = soon(); (!connecting.ready() || !server) && now() < end;) {
    near.context->progress();
    far.context->progress();
    if (auto taken = listener->try_accept(); taken.ok()) server = std::move(taken).value();
  }
  REQUIRE((connecting.ready() && server));
  auto client = connecting.take();
  REQUIRE(client.ok());
  WaitsInside sink;
  sink.context = near.context.get();
  auto send = [&] {
    must(server->send(1, allocate(*far.context, 100).freeze()).status(), "send");
    for (int i = 0; i < 100; ++i) far.context->progress();
  };
  for (int round = 0; round < 5; ++round) {
    sink.received = 0;
    for (int i = 0; i < 3; ++i) {
      REQUIRE(client->receive({.tag = 1}, allocate(*near.context, 100), {.sink = &sink}).ok());
    }
    // The first message makes the context poll the socket. It stops when it sleeps, inside the
    // completion of the second.
    send();
    for (const Instant end = soon(); sink.received < 1 && now() < end;) near.context->progress();
    sink.peer_sends = send;
    send();
    for (const Instant end = soon(); sink.received < 2 && now() < end;) near.context->progress();
    for (const Instant end = soon(); sink.received < 3 && now() < end;)
      (void)near.context->wait(from_now(std::chrono::milliseconds(100)));
    REQUIRE(sink.received == 3);
  }
  (void)client->close(from_now(std::chrono::milliseconds(1)));
  (void)server->close(from_now(std::chrono::milliseconds(1)));
}

TEST_CASE("bulk goes both ways at once", "[tcp][endpoint]") {
  DescriptorAudit audit;
  bulk_both_ways(
      4, [](uint64_t) { return size_t{16} << 20; }, [](Endpoint&) {});
}

TEST_CASE("a peer that ends without a word ends our operations and no other connection's",
          "[tcp][endpoint]") {
  DescriptorAudit audit;
  std::promise<void> sent;
  auto was_sent = sent.get_future();
  PeerThread leaving([&](Node& node, Endpoint&) {
    (void)node;
    was_sent.wait();  // the context ends with the thread
  });
  PeerThread staying(echo);
  Node node;
  auto lost = node.context->connect(leaving.address);
  auto kept = node.context->connect(staying.address);
  REQUIRE(lost.ok());
  REQUIRE(kept.ok());
  CompletionQueue queue;
  Buffer into = allocate(*node.context, 100);
  REQUIRE(lost->receive({.tag = 1}, std::move(into), {.sink = &queue}).ok());
  sent.set_value();
  REQUIRE(node.context->wait_until([&] { return !queue.empty(); }, soon()).ok());
  Completion completion;
  queue.poll(completion);
  CHECK(completion.status == Code::kUnreachable);
  CHECK(completion.buffers.size() == 1);
  for (size_t i = 0; i < kSizes.size(); ++i) {
    Buffer buffer = allocate(*node.context, kSizes[i]);
    REQUIRE(kept->send_and_wait(i, std::move(buffer).freeze(), soon()).ok());
    REQUIRE(
        kept->receive_and_wait({.tag = 1000 + i}, allocate(*node.context, kSizes[i]), soon()).ok());
  }
  CHECK(kept->close(soon()).ok());
}

TEST_CASE("a handle may outlive its context", "[tcp][endpoint]") {
  DescriptorAudit audit;
  Endpoint endpoint;
  Listener listener;
  {
    PeerThread peer([](Node& node, Endpoint& endpoint) {
      must(node.context->wait_until([&] { return endpoint.state() == EndpointState::kClosed; },
                                    soon()),
           "wait");
    });
    Node node;
    auto connected = node.context->connect(peer.address);
    REQUIRE(connected.ok());
    endpoint = std::move(connected).value();
    auto listening = node.context->listen("tcp://127.0.0.1:0");
    REQUIRE(listening.ok());
    listener = std::move(listening).value();
    node.context.reset();
  }
  CHECK(endpoint.state() == EndpointState::kClosed);
}

TEST_CASE("a requirement that TCP cannot meet is refused with the reason", "[tcp][endpoint]") {
  Node node;
  ConnectOptions options;
  options.require = zero_copy;
  auto connected = node.context->connect("tcp://127.0.0.1:1", options);
  CHECK(connected.code() == Code::kUnsupported);
  CHECK_FALSE(connected.status().detail().empty());
  ListenOptions listening;
  listening.require = max_copies(1);
  CHECK(node.context->listen("tcp://127.0.0.1:0", listening).code() == Code::kUnsupported);
}

TEST_CASE(
    "an address has as many connections as PeerLimits gives one peer, and gets its place back at "
    "the end",
    "[tcp][endpoint]") {
  DescriptorAudit audit;
  PeerLimits limits;
  limits.connections = {.by_peer = 2, .total = 100};
  Node node(Waiting::kSpin, nullptr, limits);
  auto listener = node.context->listen("tcp://127.0.0.1:0");
  REQUIRE(listener.ok());
  std::vector<Endpoint> ours, theirs;
  auto come = [&]() -> Status {
    auto endpoint =
        node.context->connect(listener->address(), {.timeout = std::chrono::seconds(10)});
    if (!endpoint.ok()) return endpoint.status();
    ours.push_back(std::move(endpoint).value());
    auto accepted = listener->accept(soon());
    REQUIRE(accepted.ok());
    theirs.push_back(std::move(accepted).value());
    return Status();
  };
  CHECK(come().ok());
  CHECK(come().ok());
  const uint64_t refused = read_counter("peer.refused_connections");
  Status third = come();
  INFO(third.to_string());
  CHECK(third == Code::kTryAgain);
  CHECK(third.detail().find("as many connections as it takes") != std::string_view::npos);
  CHECK(read_counter("peer.refused_connections") == refused + 1);
  CHECK(node.context->peer_accounts().used(PeerResource::kConnections) == 2);
  CHECK(ours[0].close(soon()).ok());
  REQUIRE(
      node.context->wait_until([&] { return theirs[0].state() == EndpointState::kClosed; }, soon())
          .ok());
  CHECK(come().ok());
  ours.clear();
  theirs.clear();
  REQUIRE(
      node.context
          ->wait_until(
              [&] { return node.context->peer_accounts().used(PeerResource::kConnections) == 0; },
              soon())
          .ok());
}

TEST_CASE("a context that only sleeps and one that only spins talk to each other",
          "[tcp][endpoint]") {
  PeerThread peer(echo);
  Node node(Waiting::kSleep);
  auto endpoint = node.context->connect(peer.address);
  REQUIRE(endpoint.ok());
  for (size_t i = 0; i < kSizes.size(); ++i) {
    Buffer buffer = allocate(*node.context, kSizes[i]);
    REQUIRE(endpoint->send_and_wait(i, std::move(buffer).freeze(), soon()).ok());
    REQUIRE(
        endpoint->receive_and_wait({.tag = 1000 + i}, allocate(*node.context, kSizes[i]), soon())
            .ok());
  }
  CHECK(endpoint->close(soon()).ok());
}

}  // namespace
}  // namespace sluice::tcp
