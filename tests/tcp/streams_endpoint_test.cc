// Endpoints whose bulk goes by further streams: every byte, limits, strangers, and the end.
#include <sluice/base/counters.h>
#include <sluice/base/settings.h>
#include <sluice/runtime/identity.h>
#include "tests/tcp/testing_endpoints.h"

namespace sluice::tcp {
namespace {

using namespace testing;

// Contexts that are opened while it lives have further streams, however short the round trip.
class Everywhere {
 public:
  explicit Everywhere(const char* streams = "4") {
    must(set_setting("SLUICE_TCP_STREAMS", streams), "setting");
    must(set_setting("SLUICE_TCP_STREAMS_FROM_US", "0"), "setting");
  }
  ~Everywhere() {
    must(set_setting("SLUICE_TCP_STREAMS", {}), "setting");
    must(set_setting("SLUICE_TCP_STREAMS_FROM_US", {}), "setting");
  }
};

constexpr size_t kMiB = size_t{1} << 20;

// A message there, until it goes by as many streams.
void warm_up(Node& node, Endpoint& endpoint, uint32_t streams) {
  for (int i = 0; i < 1000 && endpoint.info().streams < streams; ++i) {
    must(endpoint.send_and_wait(9, allocate(*node.context, kMiB).freeze(), soon()).status(),
         "send");
  }
  must(endpoint.info().streams == streams, "streams");
}

struct Both {
  Endpoint near, far;
};
// Two contexts: the listener's is used by a thread of its own until it has accepted.
Both connect(Node& near, Listener& listener) {
  Endpoint accepted;
  std::thread accepting([&] {
    auto endpoint = listener.accept(soon());
    must(endpoint.status(), "accept");
    accepted = std::move(endpoint).value();
  });
  auto connected = near.context->connect(listener.address());
  must(connected.status(), "connect");
  accepting.join();
  return {std::move(connected).value(), std::move(accepted)};
}
template <typename Done>
void turn_until(Node& a, Node& b, Done&& done, const char* what) {
  const Instant deadline = soon();
  while (!done()) {
    a.context->progress();
    b.context->progress();
    must(now() < deadline, std::string("too late: ") + what);
  }
}
// A message from one end to the other, verified.
void send_across(Node& a, Endpoint& from, Node& b, Endpoint& to, size_t bytes, uint64_t seed) {
  CompletionQueue queue;
  Buffer sent = allocate(*a.context, bytes), expected = allocate(*a.context, bytes);
  fill(sent, seed);
  fill(expected, seed);
  must(to.receive({.tag = seed}, allocate(*b.context, bytes), {.sink = &queue}).status(), "post");
  must(from.send(seed, std::move(sent).freeze(), {.deadline = kNever}).status(), "post");
  turn_until(
      a, b, [&] { return !queue.empty(); }, "message");
  Completion completion;
  queue.poll(completion);
  must(completion.status, "receive");
  must(same(completion.buffers[0], expected), "wrong bytes");
}

TEST_CASE("bulk of many sizes is spread both ways at once, and arrives whole", "[tcp][streams]") {
  DescriptorAudit audit;
  Everywhere everywhere;
  bulk_both_ways(
      24, [](uint64_t i) { return i * i * 40'001 + 20'000; },
      [](Endpoint& endpoint) { must(endpoint.info().streams == 4, "streams"); });
}

TEST_CASE("what a completed send has sent arrives, however soon its sender closes",
          "[tcp][streams]") {
  DescriptorAudit audit;
  Everywhere everywhere;
  constexpr uint64_t kMessages = 6;
  for (int round = 0; round < 10; ++round) {
    const bool says_bye = round % 2 == 0;
    PeerThread peer([&](Node& node, Endpoint& endpoint) {
      warm_up(node, endpoint, 4);
      CompletionQueue queue;
      for (uint64_t i = 0; i < kMessages; ++i) {
        Buffer sent = allocate(*node.context, kMiB + i);
        fill(sent, i);
        must(endpoint.send(i, std::move(sent).freeze(), {.sink = &queue}).status(), "post");
      }
      for (uint64_t done = 0; done < kMessages; ++done) {
        must(node.context->wait_until([&] { return !queue.empty(); }, soon()), "wait");
        Completion completion;
        queue.poll(completion);
        must(completion.status, "send");
      }
      if (says_bye) must(endpoint.close(soon()), "close");
    });
    Node node;
    auto endpoint = node.context->connect(peer.address);
    REQUIRE(endpoint.ok());
    CompletionQueue queue, warm;
    for (uint64_t i = 0; i < kMessages; ++i) {
      REQUIRE(endpoint
                  ->receive({.tag = i}, allocate(*node.context, kMiB + i),
                            {.sink = &queue, .user_data = i})
                  .ok());
    }
    int under_way = 0;
    uint64_t arrived = 0;
    while (arrived < kMessages) {
      for (; under_way < 4; ++under_way) {
        if (!endpoint->receive({.tag = 9}, allocate(*node.context, kMiB), {.sink = &warm}).ok())
          break;
      }
      REQUIRE(
          node.context->wait_until([&] { return !queue.empty() || !warm.empty(); }, soon()).ok());
      Completion completion;
      while (warm.poll(completion)) --under_way;
      while (queue.poll(completion)) {
        INFO("round " << round << ", message " << completion.user_data);
        REQUIRE(completion.status.ok());
        Buffer expected = allocate(*node.context, kMiB + completion.user_data);
        fill(expected, completion.user_data);
        CHECK(same(completion.buffers[0], expected));
        ++arrived;
      }
    }
    (void)endpoint->close(soon());
  }
}

TEST_CASE("a connection without further streams goes on with one", "[tcp][streams]") {
  DescriptorAudit audit;
  Everywhere everywhere;
  const std::string why = GENERATE("limit", "closed", "peer has none", "we have none");
  INFO(why);
  const uint64_t refused = read_counter("tcp.streams_refused");
  auto alone = [&](bool peer) {
    if (why == (peer ? "peer has none" : "we have none"))
      must(set_setting("SLUICE_TCP_STREAMS", "1"), "setting");
    auto node = std::make_unique<Node>();
    must(set_setting("SLUICE_TCP_STREAMS", "4"), "setting");
    return node;
  };
  auto far = alone(true), near = alone(false);
  ListenOptions options;
  if (why == "limit") options.max_connections = 1;
  auto listener = far->context->listen("tcp://127.0.0.1:0", options);
  REQUIRE(listener.ok());
  Both ends = connect(*near, *listener);
  if (why == "closed") listener->close();
  const bool asks = why == "limit" || why == "closed";
  for (uint64_t i = 1; i <= 20; ++i) send_across(*near, ends.near, *far, ends.far, i * kMiB, i);
  if (asks) {
    turn_until(
        *near, *far, [&] { return read_counter("tcp.streams_refused") == refused + 4; },
        "refusals");
  }
  CHECK(read_counter("tcp.streams_refused") == refused + (asks ? 4 : 0));
  CHECK(ends.near.info().streams == 1);
  CHECK(ends.far.info().streams == 1);
}

TEST_CASE("a short round trip, and a connection without bulk, have one stream", "[tcp][streams]") {
  DescriptorAudit audit;
  Node near, far;
  auto listener = far.context->listen("tcp://127.0.0.1:0");
  REQUIRE(listener.ok());
  Both ends = connect(near, *listener);
  const uint64_t joined = read_counter("tcp.streams_joined");
  for (uint64_t i = 1; i <= 20; ++i) send_across(near, ends.near, far, ends.far, 4 * kMiB, i);
  Everywhere everywhere;
  Node quiet;
  Both alone = connect(quiet, *listener);
  for (int i = 0; i < 1000; ++i) {
    quiet.context->progress();
    far.context->progress();
  }
  CHECK(read_counter("tcp.streams_joined") == joined);
}

// Two connected contexts, and a message of 4 MiB on its way, with which streams begin to join. A
// context looks for events every 64 turns, so that takes some hundreds.
struct Beginning {
  Beginning() : listener(std::move(far.context->listen("tcp://127.0.0.1:0")).value()) {
    ends = connect(near, listener);
    must(
        ends.far.receive({.tag = 1}, allocate(*far.context, 4 * kMiB), {.sink = &arrived}).status(),
        "post");
    Buffer bytes = allocate(*near.context, 4 * kMiB);
    must(ends.near.send(1, std::move(bytes).freeze(), {.sink = &left}).status(), "post");
  }
  void turn(int times) {
    for (int i = 0; i < times; ++i) {
      near.context->progress();
      far.context->progress();
    }
  }
  // The message has come.
  void finish() {
    turn_until(
        near, far, [&] { return !arrived.empty(); }, "the message");
    Completion completion;
    arrived.poll(completion);
    must(completion.status, "receive");
  }
  Node near, far;
  Listener listener;
  Both ends;
  CompletionQueue left, arrived;
};

TEST_CASE("a connection that ends while its streams are opened leaves nothing", "[tcp][streams]") {
  DescriptorAudit audit;
  Everywhere everywhere;
  for (int turns = 0; turns < 600; turns += 31) {
    Beginning scene;
    Node &near = scene.near, &far = scene.far;
    scene.turn(turns);
    (turns % 2 == 0 ? scene.ends.near : scene.ends.far) = Endpoint();
    scene.turn(50);
    if (turns % 4 == 0) continue;  // the contexts end as they are
    auto endpoints = [&] { return near.tcp->endpoint_count() + far.tcp->endpoint_count(); };
    turn_until(
        near, far, [&] { return endpoints() == 0; }, "close");
    scene.turn(1000);  // what was being opened has its answer
    auto at_rest = [&] {
      return near.context->prepare_to_sleep() && far.context->prepare_to_sleep();
    };
    turn_until(near, far, at_rest, "rest");
  }
}

TEST_CASE("a listener that closes while streams join costs a connection nothing",
          "[tcp][streams]") {
  DescriptorAudit audit;
  Everywhere everywhere;
  for (int turns = 0; turns < 600; turns += 31) {
    Beginning scene;
    scene.turn(turns);
    scene.listener.close();
    scene.finish();
    auto& [near, far] = scene.ends;
    for (uint64_t i = 2; i < 5; ++i) send_across(scene.near, near, scene.far, far, 3 * kMiB, i);
    for (uint64_t i = 5; i < 8; ++i) send_across(scene.far, far, scene.near, near, 3 * kMiB, i);
  }
}

TEST_CASE("streams count in the limits of a listener until their connection ends, not its handle",
          "[tcp][streams]") {
  DescriptorAudit audit;
  Everywhere everywhere;
  Node near, far;
  auto listener = far.context->listen("tcp://127.0.0.1:0", {.max_connections = 5});
  REQUIRE(listener.ok());
  Both ends = connect(near, *listener);
  for (uint64_t i = 1; i < 1000 && ends.near.info().streams < 4; ++i)
    send_across(near, ends.near, far, ends.far, kMiB, i);
  REQUIRE(ends.near.info().streams == 4);
  ends.near = Endpoint();
  turn_until(
      near, far, [&] { return ends.far.state() == EndpointState::kClosed; }, "the end");
  // The handle is kept.
  Both again = connect(near, *listener);
  for (uint64_t i = 1; i < 1000 && again.near.info().streams < 4; ++i)
    send_across(near, again.near, far, again.far, kMiB, i);
  CHECK(again.near.info().streams == 4);
}

TEST_CASE("a sender that closes while streams are opened is not taken for a hostile one",
          "[tcp][streams]") {
  DescriptorAudit audit;
  Everywhere everywhere;
  const uint64_t overdue = read_counter("tcp.streams_overdue");
  for (int turns = 0; turns < 600; turns += 31) {
    Beginning scene;
    turn_until(
        scene.near, scene.far, [&] { return !scene.left.empty(); }, "the send");
    scene.turn(turns);
    std::thread closing([&] { must(scene.ends.near.close(soon()), "close"); });
    const Instant deadline = soon();
    while (scene.ends.far.state() != EndpointState::kClosed && now() < deadline)
      scene.far.context->progress();
    closing.join();
  }
  CHECK(read_counter("tcp.streams_overdue") == overdue);
}

// What a stranger, or a greedy peer, says at the listener's port.
struct Raw {
  explicit Raw(const std::string& address) {
    fd = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    REQUIRE(::connect(fd.value(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0);
    send_without_delay(fd.value());
  }
  // The answer to that HELLO: HELLO, or the code of BYE.
  wire::Header say(const wire::Hello& hello, Node& node, wire::Hello& answer) {
    write_all(fd.value(), frame(hello));
    std::array<std::byte, kMaxGreetingBytes> scratch;
    const Instant deadline = soon();
    while (now() < deadline) {
      node.context->progress();
      Glimpse glimpse = take_message(fd.value(), scratch);
      if (glimpse.state == Glimpse::State::kIncomplete) continue;
      REQUIRE(glimpse.state == Glimpse::State::kComplete);
      if (glimpse.common.type == wire::MessageType::kHello)
        REQUIRE(wire::decode(glimpse.header, answer).ok());
      wire::Bye bye;
      if (glimpse.common.type == wire::MessageType::kBye) {
        REQUIRE(wire::decode(glimpse.header, bye).ok());
        code = bye.code;
      }
      return glimpse.common;
    }
    FAIL("no answer");
    return {};
  }
  void choose_tcp() {
    write_all(fd.value(),
              frame(wire::Done{.id = static_cast<uint64_t>(Path::kTcp), .code = Code::kOk}));
  }
  Descriptor fd;
  Code code = Code::kOk;
};

TEST_CASE("streams join by the token of a connection that is there, and so many",
          "[tcp][streams][hostile]") {
  DescriptorAudit audit;
  Everywhere everywhere;
  Node node;
  std::vector<std::string> introduced;
  ListenOptions options;
  options.accept = [&](const PeerIntroduction& who) {
    introduced.emplace_back(who.address);
    return true;
  };
  auto listener = node.context->listen("tcp://127.0.0.1:0", options);
  REQUIRE(listener.ok());
  wire::Hello hello = local_hello(0), answer;
  {
    // An older peer is not told.
    Raw old(listener->address());
    old.say(hello, node, answer);
    CHECK_FALSE(answer.has_streams);
  }
  hello.features |= wire::kFeatureStreams;
  auto first = std::make_unique<Raw>(listener->address());
  first->say(hello, node, answer);
  REQUIRE(answer.has_streams);
  const wire::Uuid token = answer.streams_token;
  wire::Hello joining = hello;
  joining.has_streams = true;
  joining.streams_token = token;
  {
    // It is not an endpoint yet.
    Raw early(listener->address());
    CHECK(early.say(joining, node, answer).type == wire::MessageType::kBye);
    CHECK(early.code == Code::kUnreachable);
  }
  first->choose_tcp();
  auto endpoint = listener->accept(soon());
  REQUIRE(endpoint.ok());
  std::vector<std::unique_ptr<Raw>> further;
  // All are greeted before the first of them chooses.
  for (int i = 0; i < 20; ++i) {
    further.push_back(std::make_unique<Raw>(listener->address()));
    REQUIRE(further.back()->say(joining, node, answer).type == wire::MessageType::kHello);
    CHECK_FALSE(answer.has_streams);
  }
  for (auto& raw : further) raw->choose_tcp();
  const Instant deadline = soon();
  while (endpoint->info().streams < 16 && now() < deadline) node.context->progress();
  for (int i = 0; i < 200; ++i) node.context->progress();
  CHECK(endpoint->info().streams == 16);
  {
    Raw one_more(listener->address());
    CHECK(one_more.say(joining, node, answer).type == wire::MessageType::kBye);
  }
  wire::Hello guessing = joining;
  guessing.streams_token.bytes[0] ^= std::byte{1};
  {
    Raw stranger(listener->address());
    CHECK(stranger.say(guessing, node, answer).type == wire::MessageType::kBye);
    CHECK(stranger.code == Code::kUnreachable);
  }
  CHECK(introduced.size() == 2);  // the program hears of connections, not of streams
  // The token ends with its connection; this one never had a stream.
  Raw other(listener->address());
  other.say(hello, node, answer);
  joining.streams_token = answer.streams_token;
  other.choose_tcp();
  auto alone = listener->accept(soon());
  REQUIRE(alone.ok());
  alone = Endpoint();
  endpoint = Endpoint();
  other.fd.reset();
  first.reset();
  while (node.tcp->endpoint_count() > 0 && now() < deadline) node.context->progress();
  {
    Raw late(listener->address());
    CHECK(late.say(joining, node, answer).type == wire::MessageType::kBye);
  }
}

}  // namespace
}  // namespace sluice::tcp
