// Cancel and deadlines: each kind of operation in each state it can wait in ends once,
// with the status that is true, and its memory comes back.
#include "tests/contract/pair.h"

namespace sluice::test {
namespace {

// One way to leave an operation unfinished, and what its early end must say.
struct Unfinished {
  const char* name;
  Code when_cancelled, when_late;
  std::function<OperationId(Pair&, Box&, Instant deadline)> post;
};

OperationId ok(Result<OperationId> posted) {
  INFO(posted.status().to_string());
  REQUIRE(posted.ok());
  return *posted;
}

constexpr size_t kLarge = 3 << 20;

RemoteKey granted(Pair& pair, size_t size, Right right = Right::kReadWrite) {
  // The grant keeps the memory.
  auto key = pair.server.grant(filled(*pair.server_context, size, 50), {.rights = right});
  REQUIRE(key.ok());
  return *key;
}

std::vector<Unfinished> unfinished() {
  std::vector<Unfinished> ways;
  ways.push_back({"a receive that no message matches", Code::kCancelled, Code::kTimedOut,
                  [](Pair& pair, Box& box, Instant deadline) {
                    return ok(pair.client.receive({.tag = 5}, room(*pair.client_context, 10),
                                                  box.options(0, deadline)));
                  }});
  ways.push_back({"a send without credit", Code::kCancelled, Code::kTimedOut,
                  [](Pair& pair, Box& box, Instant deadline) {
                    // Nothing is received: 256 messages use the credit up.
                    for (int i = 0; i < 256; ++i)
                      ok(pair.client.send(1, tensor(*pair.client_context, 8, 1)));
                    pair.settle();
                    return ok(pair.client.send(1, tensor(*pair.client_context, 8, 1),
                                               box.options(0, deadline)));
                  }});
  // Where the peer is asked to let go before the memory comes back, its answer says that
  // nothing was delivered.
  Code cancelled = path_is_direct() ? Code::kCancelled : Code::kOutcomeUnknown;
  Code late = path_is_direct() ? Code::kTimedOut : Code::kOutcomeUnknown;
  ways.push_back({"a large send that the peer has not received", cancelled, late,
                  [](Pair& pair, Box& box, Instant deadline) {
                    OperationId id = ok(pair.client.send(1, tensor(*pair.client_context, kLarge, 1),
                                                         box.options(0, deadline)));
                    pair.settle();
                    return id;
                  }});
  ways.push_back({"a small send at kPlaced that the peer has not received", Code::kOutcomeUnknown,
                  Code::kOutcomeUnknown, [](Pair& pair, Box& box, Instant deadline) {
                    OperationId id = ok(pair.client.send(1, tensor(*pair.client_context, 8, 1),
                                                         box.options(0, deadline)));
                    pair.settle();
                    return id;
                  }});
  if (path_has_device()) return ways;  // a device answers by itself
  ways.push_back({"a read that the peer has not answered", Code::kCancelled, Code::kTimedOut,
                  [](Pair& pair, Box& box, Instant deadline) {
                    RemoteKey key = granted(pair, kLarge);
                    pair.settle();
                    pair.freeze_server();
                    return ok(pair.client.read(key, 0, room(*pair.client_context, kLarge),
                                               box.options(0, deadline)));
                  }});
  if (path_is_direct()) return ways;  // no message tells that the write has begun
  ways.push_back({"a write that the peer has not answered", Code::kOutcomeUnknown,
                  Code::kOutcomeUnknown, [](Pair& pair, Box& box, Instant deadline) {
                    RemoteKey key = granted(pair, kLarge);
                    pair.settle();
                    pair.freeze_server();
                    uint64_t sent = pair.client.counters().messages_sent;
                    OperationId id = ok(pair.client.write(
                        key, 0, tensor(*pair.client_context, kLarge, 3), box.options(0, deadline)));
                    // A busy link takes the offer some turns later.
                    while (pair.client.counters().messages_sent == sent && box.all.empty())
                      pair.client_context->progress();
                    return id;
                  }});
  return ways;
}

TEST_CASE("cancel ends each kind of operation once and gives its buffers back",
          "[contract][ending]") {
  NothingLeftBehind audit;
  for (const Unfinished& way : unfinished()) {
    INFO(way.name);
    Pair pair;
    Box& box = pair.box();
    OperationId id = way.post(pair, box, soon());
    CHECK(box.find(id) == nullptr);
    REQUIRE(pair.client.cancel(id).ok());
    CHECK(box.find(id) == nullptr);  // completions come from progress, never from inside a call
    CHECK_FALSE(pair.client.cancel(id).ok());
    // At once, or where the peer must let go of the memory first, with its answer.
    pair.client_context->progress();
    if (path_is_direct()) pair.until([&] { return box.find(id) != nullptr; });
    REQUIRE(box.find(id) != nullptr);
    Completion ended = std::move(*box.find(id));
    INFO(ended.status.to_string());
    CHECK(ended.status == way.when_cancelled);
    bool incoming = ended.kind == OperationKind::kReceive || ended.kind == OperationKind::kRead;
    CHECK(ended.buffers.size() == (incoming ? 1u : 0u));
    if (incoming) CHECK(ended.buffers[0]);
    pair.thaw_server();
    pair.settle();
    CHECK(box.count(id) == 1);
    CHECK(pair.client.cancel(id).code() == Code::kInvalidArgument);
  }
}

TEST_CASE("each kind of operation ends at its deadline and gives its buffers back",
          "[contract][ending]") {
  NothingLeftBehind audit;
  for (const Unfinished& way : unfinished()) {
    INFO(way.name);
    Pair pair;
    Box& box = pair.box();
    // A busy link needs turns until it takes what shall go unanswered.
    Instant deadline = in(faults_under_test() ? 300ms : 20ms);
    OperationId id = way.post(pair, box, deadline);
    REQUIRE(pair.client_context->wait_until([&] { return box.find(id) != nullptr; }, soon()).ok());
    CHECK(now() >= deadline);
    Completion ended = std::move(*box.find(id));
    INFO(ended.status.to_string());
    CHECK(ended.status == way.when_late);
    bool incoming = ended.kind == OperationKind::kReceive || ended.kind == OperationKind::kRead;
    CHECK(ended.buffers.size() == (incoming ? 1u : 0u));
    pair.thaw_server();
    pair.settle();
    CHECK(box.count(id) == 1);
  }
}

TEST_CASE("after a cancelled receive nothing writes to its buffer and the message is still there",
          "[contract][ending]") {
  NothingLeftBehind audit;
  for (size_t size : {size_t{100}, kLarge}) {
    Pair pair;
    Box& box = pair.box();
    OperationId id =
        ok(pair.server.receive({.tag = 1}, filled(*pair.server_context, size, 8), box.options()));
    REQUIRE(pair.server.cancel(id).ok());
    Box& sent = pair.box();
    OperationId send =
        ok(pair.client.send(1, tensor(*pair.client_context, size, 1), sent.options()));
    Completion& cancelled = pair.wait(box, id);
    pair.settle();
    CHECK(cancelled.status == Code::kCancelled);
    CHECK(holds(cancelled.buffers[0].bytes(), 8));
    auto got = pair.server.receive_and_wait({.tag = 1}, room(*pair.server_context, size), soon());
    REQUIRE(got.ok());
    CHECK(holds(got->buffer.bytes(), 1));
    CHECK(pair.wait(sent, send).status.ok());
  }
}

TEST_CASE(
    "a receive cancelled in the middle of its transfer ends both sides and nothing is written "
    "later",
    "[contract][ending]") {
  NothingLeftBehind audit;
  Pair pair;
  Box& box = pair.box();
  constexpr size_t size = size_t{48} << 20;  // several rounds on every path
  OperationId receive =
      ok(pair.server.receive({.tag = 1}, room(*pair.server_context, size), box.options()));
  Box& sender = pair.box();
  OperationId send =
      ok(pair.client.send(1, tensor(*pair.client_context, size, 1), sender.options()));
  // Until bytes are moving.
  REQUIRE(pair.until([&] {
    pair.client_context->progress();
    return pair.server.counters().bytes_received > 0 || pair.client.counters().bytes_sent > 0 ||
           !box.all.empty() || !sender.all.empty();
  }));
  bool running = pair.server.cancel(receive).ok();
  Completion& ended = pair.wait(box, receive);
  CHECK(ended.status.code() == (running ? Code::kCancelled : Code::kOk));
  REQUIRE(ended.buffers.size() == 1);
  fill(ended.buffers[0].bytes(), 99);
  Completion& sent = pair.wait(sender, send);
  INFO(sent.status.to_string());
  CHECK_FALSE((running && sent.status.ok()));
  pair.settle();
  CHECK(holds(pair.wait(box, receive).buffers[0].bytes(), 99));
  // The connection is as good as new.
  REQUIRE(pair.client.send(2, tensor(*pair.client_context, 100'000, 2)).ok());
  auto next = pair.server.receive_and_wait({.tag = 2}, room(*pair.server_context, 100'000), soon());
  REQUIRE(next.ok());
  CHECK(holds(next->buffer.bytes(), 2));
}

TEST_CASE("a large send that is cancelled before it was received never arrives",
          "[contract][ending]") {
  NothingLeftBehind audit;
  Pair pair;
  Box& box = pair.box();
  OperationId id = ok(pair.client.send(1, tensor(*pair.client_context, kLarge, 1), box.options()));
  pair.settle();
  REQUIRE(pair.client.cancel(id).ok());
  pair.settle();
  CHECK(pair.wait(box, id).status == (path_is_direct() ? Code::kCancelled : Code::kOutcomeUnknown));
  CHECK(pair.client.counters().loans_outstanding == 0);
  auto none =
      pair.server.receive_and_wait({.tag = 1}, room(*pair.server_context, kLarge), in(10ms));
  CHECK(none.code() == Code::kTimedOut);
}

TEST_CASE("an operation without a deadline of its own gets the endpoint's, counted from the post",
          "[contract][ending]") {
  NothingLeftBehind audit;
  Pair pair;
  pair.client.set_default_timeout(200ms);
  pair.settle();
  // A long computation: nobody calls progress.
  Instant start = now();
  while (now() < after(start, 300ms)) {}
  Box& box = pair.box();
  Instant posted = now();
  OperationId id =
      ok(pair.client.receive({.tag = 1}, room(*pair.client_context, 8), {.sink = &box}));
  pair.wait(box, id);
  CHECK(box.all[0].status == Code::kTimedOut);
  CHECK(now() >= after(posted, 200ms));
}

TEST_CASE("kNever waits until the message comes", "[contract][ending]") {
  NothingLeftBehind audit;
  Pair pair;
  pair.client.set_default_timeout(1ms);
  Box& box = pair.box();
  OperationId id =
      ok(pair.client.receive({.tag = 1}, room(*pair.client_context, 8), box.options(0, kNever)));
  Instant start = now();
  while (now() < after(start, 30ms)) pair.client_context->progress();
  CHECK(box.all.empty());
  REQUIRE(pair.server.send(1, tensor(*pair.server_context, 8, 1)).ok());
  CHECK(pair.wait(box, id).status.ok());
}

TEST_CASE("an operation posted without a sink ends without a word and is counted",
          "[contract][ending]") {
  NothingLeftBehind audit;
  Pair pair;
  REQUIRE(pair.client.send(1, tensor(*pair.client_context, 8, 1), {}).ok());
  REQUIRE(
      pair.client.receive({.tag = 1}, room(*pair.client_context, 8), {.deadline = in(1ms)}).ok());
  REQUIRE(pair.until([&] { return pair.client.counters().completed == 2; }));
  CHECK(pair.client.counters().posted == 2);
}

TEST_CASE("cancel knows only operations of its own endpoint that are still under way",
          "[contract][ending]") {
  NothingLeftBehind audit;
  Pair pair;
  CHECK(pair.client.cancel(kNoOperation).code() == Code::kInvalidArgument);
  CHECK(pair.client.cancel(~OperationId{0}).code() == Code::kInvalidArgument);
  CHECK(pair.client.cancel(12345).code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace sluice::test
