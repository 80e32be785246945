// The end of endpoints and contexts: everything posted has completed, exactly once, and
// what tensors are still out stay readable.
#include "tests/contract/pair.h"

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::test {
namespace {

struct Closing final : CompletionSink {
  Endpoint* endpoint = nullptr;
  int told = 0;
  void on_completion(Completion&&) noexcept override {
    ++told;
    if (auto* once = std::exchange(endpoint, nullptr)) {
      closed = once->close(in(std::chrono::milliseconds(100)));
      if (closed == Code::kWrongState) once->start_close();
    }
  }
  Status closed;
};

TEST_CASE("an endpoint may be closed from its own completion", "[contract][closing]") {
  NothingLeftBehind audit;
  for (const bool of_a_send : {false, true}) {
    INFO("of a send: " << of_a_send);
    Pair pair;
    Closing closing;
    closing.endpoint = &pair.client;
    const PostOptions options{.sink = &closing, .deadline = soon()};
    if (of_a_send) {
      REQUIRE(pair.client.send(1, tensor(*pair.client_context, 100'000, 1), options).ok());
      Box& box = pair.box();
      REQUIRE(
          pair.server.receive({.tag = 1}, room(*pair.server_context, 100'000), box.options()).ok());
    } else {
      REQUIRE(pair.client.receive({.tag = 1}, room(*pair.client_context, 100), options).ok());
      REQUIRE(pair.server.send(1, tensor(*pair.server_context, 100, 1)).ok());
    }
    REQUIRE(pair.client.receive({.tag = 2}, room(*pair.client_context, 100), options).ok());
    CHECK(pair.until([&] { return closing.told == 2; }));
    const bool refused = closing.closed == Code::kWrongState;
    // What delays messages may tell of them outside the path's turn.
    if (!faults_under_test()) CHECK(refused == (path_is_slp() || path_is_module()));
    CHECK(static_cast<bool>(pair.client) == refused);
    CHECK(pair.client.close(soon()).ok());
    CHECK(pair.until([&] { return pair.server.state() == EndpointState::kClosed; }));
  }
}

// Operations of every kind, in every state, outstanding at once.
size_t post_everything(Pair& pair, Box& box, Endpoint& from, Context& context) {
  size_t posted = 0;
  auto count = [&](const Result<OperationId>& result) {
    INFO(result.status().to_string());
    REQUIRE(result.ok());
    ++posted;
  };
  for (Tag tag = 0; tag < 5; ++tag)
    count(from.receive({.tag = 1000 + tag}, room(context, 100'000), box.options()));
  for (size_t size : {size_t{0}, size_t{100}, size_t{60'000}, size_t{5} << 20}) {
    count(from.send(size, tensor(context, size, size),
                    box.options(0, soon(), Level::kSourceReusable)));
    count(from.send(size, tensor(context, size, size), box.options()));
  }
  for (int i = 0; i < 300; ++i) count(from.send(7, tensor(context, 10, 1), box.options()));
  RemoteKey key{.grant = 99, .length = 1 << 20, .rights = Right::kReadWrite};
  if (path_is_direct()) {
    // A device that meets nobody's key ends the connection.
    bool at_client = &from == &pair.client;
    Endpoint& target = at_client ? pair.server : pair.client;
    Context& owner = at_client ? *pair.server_context : *pair.client_context;
    auto granted = target.grant(room(owner, 1 << 20), {.rights = Right::kReadWrite});
    REQUIRE(granted.ok());
    key = *granted;
  }
  count(from.read(key, 0, room(context, 1 << 20), box.options()));
  count(from.write(key, 0, tensor(context, 1 << 20, 1), box.options()));
  for (uint32_t i = 0; i < 3; ++i) {
    WantOptions want;
    std::string name = "never-" + std::to_string(i);
    want.key_id = i;
    want.key = name;
    if (i > 0) want.destination = room(context, 1000);
    PostOptions options = box.options();
    count(from.core().post_want(want, options));
  }
  return posted;
}

void check_all_ended(const Box& box, size_t posted, const EndpointCounters& counters) {
  CHECK(box.all.size() == posted);
  CHECK(counters.posted == posted);
  CHECK(counters.completed == posted);
  for (const Completion& completion : box.all) {
    CHECK(box.count(completion.id) == 1);
    bool incoming =
        completion.kind == OperationKind::kReceive || completion.kind == OperationKind::kRead;
    if (incoming) CHECK(completion.buffers.size() == 1);
  }
}

TEST_CASE("close ends every operation exactly once and returns their buffers",
          "[contract][closing]") {
  NothingLeftBehind audit;
  for (bool settled : {false, true}) {
    Pair pair;
    Box& box = pair.box();
    size_t posted = post_everything(pair, box, pair.client, *pair.client_context);
    if (settled) pair.settle();
    std::shared_ptr<EndpointCore> core = pair.client.shared();
    REQUIRE(pair.client.close(soon()).ok());
    check_all_ended(box, posted, core->counters());
    for (const Completion& completion : box.all) {
      bool fine = completion.status.ok() || completion.status == Code::kCancelled ||
                  completion.status == Code::kOutcomeUnknown ||
                  completion.status == Code::kAccessDenied;
      INFO(completion.status.to_string());
      CHECK(fine);
    }
    CHECK(core->post_send(1, std::span<const Tensor>(), {}).code() == Code::kWrongState);
  }
}

TEST_CASE("when the peer closes, every operation here ends exactly once", "[contract][closing]") {
  NothingLeftBehind audit;
  Pair pair;
  Box& box = pair.box();
  size_t posted = post_everything(pair, box, pair.client, *pair.client_context);
  std::shared_ptr<EndpointCore> core = pair.client.shared();
  REQUIRE(pair.server.close(soon()).ok());
  REQUIRE(pair.until([&] { return core->state() == EndpointState::kClosed; }));
  check_all_ended(box, posted, core->counters());
  Buffer mine = room(*pair.client_context, 10);
  auto refused = pair.client.receive({.tag = 1}, std::move(mine), box.options());
  CHECK(refused.code() == Code::kWrongState);
  CHECK(mine);
}

TEST_CASE("both sides may close at once", "[contract][closing]") {
  NothingLeftBehind audit;
  Pair pair;
  Box &near = pair.box(), &far = pair.box();
  size_t here = post_everything(pair, near, pair.client, *pair.client_context);
  size_t there = post_everything(pair, far, pair.server, *pair.server_context);
  pair.client.core().start_close();
  pair.server.core().start_close();
  REQUIRE(pair.until([&] {
    return pair.client.state() == EndpointState::kClosed &&
           pair.server.state() == EndpointState::kClosed;
  }));
  check_all_ended(near, here, pair.client.counters());
  check_all_ended(far, there, pair.server.counters());
}

TEST_CASE("dropping the handle without close ends both sides", "[contract][closing]") {
  NothingLeftBehind audit;
  for (bool settled : {false, true}) {
    Pair pair;
    Box &near = pair.box(), &far = pair.box();
    size_t here = post_everything(pair, near, pair.client, *pair.client_context);
    size_t there = post_everything(pair, far, pair.server, *pair.server_context);
    if (settled) pair.settle();
    std::shared_ptr<EndpointCore> core = pair.client.shared();
    pair.client = Endpoint();
    REQUIRE(pair.until([&] {
      return core->state() == EndpointState::kClosed &&
             pair.server.state() == EndpointState::kClosed;
    }));
    check_all_ended(near, here, core->counters());
    check_all_ended(far, there, pair.server.counters());
    for (const Completion& completion : near.all)
      CHECK((completion.status.ok() || completion.status == Code::kCancelled ||
             completion.status == Code::kOutcomeUnknown ||
             completion.status == Code::kAccessDenied));
  }
}

TEST_CASE("what was sent before a close arrives", "[contract][closing]") {
  NothingLeftBehind audit;
  Pair pair;
  for (Tag tag = 0; tag < 20; ++tag)
    REQUIRE(pair.client.send(tag, tensor(*pair.client_context, 100, tag)).ok());
  REQUIRE(pair.client.close(soon()).ok());
  for (Tag tag = 0; tag < 20; ++tag) {
    auto got = pair.server.receive_and_wait({.tag = tag}, room(*pair.server_context, 100), soon());
    INFO(got.status().to_string());
    REQUIRE(got.ok());
    CHECK(holds(got->buffer.bytes(), tag));
  }
  // What never came cannot come any more.
  CHECK(pair.server.receive_and_wait({.tag = 50}, room(*pair.server_context, 100), soon()).code() ==
        Code::kWrongState);
}

TEST_CASE("close is bounded by its deadline when the peer does not call progress",
          "[contract][closing]") {
  NothingLeftBehind audit;
  Pair pair;
  pair.settle();
  Box& box = pair.box();
  pair.freeze_server();
  size_t posted = post_everything(pair, box, pair.client, *pair.client_context);
  std::shared_ptr<EndpointCore> core = pair.client.shared();
  Instant deadline = in(30ms);
  CHECK(pair.client.close(deadline).code() == Code::kTimedOut);
  CHECK(now() >= deadline);
  for (int i = 0; i < 10; ++i) pair.client_context->progress();
  CHECK(core->state() == EndpointState::kClosed);
  check_all_ended(box, posted, core->counters());
  pair.thaw_server();
  REQUIRE(pair.until([&] { return pair.server.state() == EndpointState::kClosed; }));
}

TEST_CASE("a second close is harmless, and so are calls on a closed endpoint",
          "[contract][closing]") {
  NothingLeftBehind audit;
  Pair pair;
  std::shared_ptr<EndpointCore> core = pair.client.shared();
  REQUIRE(pair.client.close(soon()).ok());
  REQUIRE(pair.client.close(soon()).ok());
  core->start_close();
  core->abort(Status(Code::kCancelled, Scope::kEndpoint, "test"));
  CHECK(core->state() == EndpointState::kClosed);
  CHECK(core->cancel(1).code() == Code::kInvalidArgument);
  CHECK(core->grant(Buffer(), {}).code() == Code::kWrongState);
  CHECK(core->refuse_want(1, Code::kTimedOut).code() == Code::kWrongState);
  RemoteKey key;
  CHECK_FALSE(core->revoke(key).ok());
}

Tensor fetched_view(Pair& pair, uint64_t seed, size_t size) {
  // A want answered by hand: what the exchange does.
  struct Supplier final : WantHandler {
    void on_want(EndpointCore& endpoint, const WantRequest& request) noexcept override {
      supplied = endpoint.post_supply(request.token, tensor, {.deadline = kNever}).ok();
    }
    bool on_want_cancelled(EndpointCore&, uint64_t) noexcept override { return false; }
    void on_endpoint_closed(EndpointCore&, const Status&) noexcept override {}
    Tensor tensor;
    bool supplied = false;
  } supplier;
  supplier.tensor = tensor(*pair.server_context, size, seed);
  pair.server.core().set_want_handler(&supplier);
  WantOptions want;
  want.key = "weight";
  Box& box = pair.box();
  auto posted = pair.client.core().post_want(want, box.options());
  REQUIRE(posted.ok());
  Completion& completion = pair.wait(box, *posted);
  REQUIRE(completion.status.ok());
  pair.server.core().set_want_handler(nullptr);
  return std::move(completion.tensor);
}

TEST_CASE("a fetched tensor stays readable after the endpoint, the context and the owner are gone",
          "[contract][closing]") {
  NothingLeftBehind audit;
  Tensor kept;
  {
    Pair pair;
    kept = fetched_view(pair, 12, 500'000);
    CHECK(holds(kept.bytes(), 12));
    REQUIRE(pair.client.close(soon()).ok());
    CHECK(holds(kept.bytes(), 12));
    // The owner's program goes on allocating: the loan is not used again.
    REQUIRE(pair.until([&] { return pair.server.state() == EndpointState::kClosed; }));
    std::vector<Buffer> others;
    for (uint64_t i = 0; i < 8; ++i)
      others.push_back(filled(*pair.server_context, 500'000, 90 + i));
    CHECK(holds(kept.bytes(), 12));
    others.clear();
    if (!kept.owned_by_peer()) {
      // A tensor of our own arena: it may outlive everything, but not this audit.
      Tensor copy = std::move(kept);
    } else {
      CHECK(pair.server_context->arena().statistics().outstanding == 1);
      kept = Tensor();
      REQUIRE(
          pair.until([&] { return pair.server_context->arena().statistics().outstanding == 0; }));
    }
  }
}

TEST_CASE("views outlive their context and the memory goes with the last of them",
          "[contract][closing]") {
  NothingLeftBehind audit;
  auto near = open(), far = open();
  ProgressOther hook;
  hook.other = far.get();
  near->add_hook(&hook);
  auto listener = far->listen(fresh_address());
  REQUIRE(listener.ok());
  auto client = near->connect(listener->address());
  REQUIRE(client.ok());
  auto server = listener->accept(soon());
  REQUIRE(server.ok());
  Box box;
  REQUIRE(client->receive({.tag = 1}, room(*near, 1000), box.options()).ok());
  REQUIRE(server->send(1, tensor(*far, 1000, 4), {}).ok());
  for (Instant end = soon(); box.all.empty() && now() < end;) near->progress(), far->progress();
  REQUIRE(box.all.size() == 1);
  Tensor kept = std::move(box.all[0].buffers[0]).freeze();
  box.all.clear();
  REQUIRE(client->close(soon()).ok());
  (void)server->close(soon());
  *listener = Listener();
  near->remove_hook(&hook);
  near.reset();
  far.reset();
  CHECK(holds(kept.bytes(), 4));
  std::thread([last = std::move(kept)]() mutable { last = Tensor(); }).join();
}

TEST_CASE("a tensor dropped on another thread goes home by progress", "[contract][closing]") {
  NothingLeftBehind audit;
  Pair pair;
  for (int i = 0; i < 20; ++i) {
    Tensor view = fetched_view(pair, 3, 70'000);
    std::thread dropper([&] { view = Tensor(); });
    bool home = pair.until([&] {
      return pair.client.counters().views_outstanding == 0 &&
             pair.server.counters().loans_outstanding == 0 &&
             pair.server_context->arena().statistics().outstanding == 0;
    });
    dropper.join();
    CHECK(home);
  }
}

// Over shm a context that goes while its peer still lives cannot tell when the peer's views
// end: what it lent is given up for good.
bool gives_loans_up() { return path_under_test() == "shm" || path_under_test() == "sluice"; }

TEST_CASE("contexts dropped with everything outstanding end their endpoints",
          "[contract][closing]") {
  Holdings before = holdings();
  uint64_t given_up = read_counter("shm.loans_abandoned");
  for (bool handles_first : {true, false}) {
    Pair pair;
    Box &near = pair.box(), &far = pair.box();
    post_everything(pair, near, pair.client, *pair.client_context);
    post_everything(pair, far, pair.server, *pair.server_context);
    for (int i = 0; i < 3; ++i) pair.client_context->progress();
    if (handles_first) {
      pair.client = Endpoint();
      pair.server = Endpoint();
    }
    pair.drop_contexts();
    for (Endpoint* left : {&pair.client, &pair.server}) {
      if (!*left) continue;
      CHECK(left->state() == EndpointState::kClosed);
      // Also for a message that had come: nobody is there to deliver it.
      for (Tag tag : {0, 7, 100})
        CHECK(left->receive({.tag = tag}, Buffer(), {}).code() == Code::kWrongState);
      CHECK(left->send(1, Tensor(), {}).code() == Code::kWrongState);
    }
  }
  bool lost = read_counter("shm.loans_abandoned") > given_up;
  CHECK(lost == gives_loans_up());
  std::string left = left_behind(before, holdings());
  INFO(left);
  if (!lost) CHECK(left.empty());
}

TEST_CASE("closing an endpoint that has ended gives back what came before its end",
          "[contract][closing]") {
  NothingLeftBehind audit;
  Pair pair;
  for (Tag tag = 0; tag < 3; ++tag)
    REQUIRE(pair.server.send(tag, tensor(*pair.server_context, 64, tag), {}).ok());
  pair.settle();
  pair.server.core().start_close();
  REQUIRE(pair.until([&] { return pair.client.state() == EndpointState::kClosed; }));
  // It can still be received, and the rest is given up.
  Box& box = pair.box();
  auto one = pair.client.receive({.tag = 1}, room(*pair.client_context, 64), box.options());
  REQUIRE(one.ok());
  CHECK(pair.wait(box, *one).status.ok());
  box.all.clear();
  CHECK(pair.client_context->arena().statistics().outstanding > 0);
  CHECK(pair.client.close(soon()).ok());
  CHECK(pair.client_context->arena().statistics().outstanding == 0);
}

TEST_CASE("contexts closed before they are dropped leave nothing behind", "[contract][closing]") {
  NothingLeftBehind audit;
  Pair pair;
  Box &near = pair.box(), &far = pair.box();
  size_t here = post_everything(pair, near, pair.client, *pair.client_context);
  size_t there = post_everything(pair, far, pair.server, *pair.server_context);
  for (int i = 0; i < 3; ++i) pair.client_context->progress();
  REQUIRE(pair.client_context->close(soon()).ok());
  check_all_ended(near, here, pair.client.counters());
  pair.settle();
  check_all_ended(far, there, pair.server.counters());
  REQUIRE(pair.server_context->close(soon()).ok());
  pair.settle();
}

TEST_CASE("messages that nobody received are let go with the endpoint", "[contract][closing]") {
  NothingLeftBehind audit;
  Pair pair;
  for (bool by_close : {false, true}) {
    INFO((by_close ? "closed" : "dropped"));
    auto [near, far] = pair.connect_again();
    for (Tag tag = 0; tag < 3; ++tag)
      REQUIRE(near.send(tag, tensor(*pair.client_context, 100, tag)).ok());
    REQUIRE(pair.until([&, &far = far] { return far.counters().messages_received == 3; }));
    if (by_close) CHECK(far.close(soon()).ok());
    far = Endpoint();
    near = Endpoint();
    CHECK(pair.until([&] { return pair.server_context->arena().statistics().outstanding == 0; }));
  }
}

TEST_CASE("a context whose connections have ended one after the other sleeps and holds nothing",
          "[contract][closing]") {
  NothingLeftBehind audit;
  for (int turns_between : {0, 1, 2, 3}) {
    INFO(turns_between << " turns between two ends");
    Pair pair;
    Box& box = pair.box();
    std::vector<std::pair<Endpoint, Endpoint>> others;
    for (int i = 0; i < 3; ++i) others.push_back(pair.connect_again());
    for (auto& [near, far] : others)
      REQUIRE(far.send(1, tensor(*pair.server_context, 1 << 20, 1), box.options()).ok());
    pair.settle();
    pair.freeze_server();
    for (Endpoint* near : {&others[0].first, &others[1].first, &others[2].first, &pair.client}) {
      *near = Endpoint();
      pair.client_context->progress();
      for (int turn = 0; turn < turns_between; ++turn) pair.server_context->progress();
    }
    pair.thaw_server();
    CHECK(pair.until([&] { return box.all.size() == others.size(); }));
    for (auto& [near, far] : others) far = Endpoint();
    pair.server = Endpoint();
    CHECK(pair.until([&] { return pair.server_context->arena().statistics().outstanding == 0; }));
    CHECK(pair.until([&] { return pair.server_context->prepare_to_sleep(); }));
  }
}

}  // namespace
}  // namespace sluice::test
