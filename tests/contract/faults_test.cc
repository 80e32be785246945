// A path that fails: for every call between session and path, the N-th one goes wrong, for
// N = 1, 2, ... until the work has no N-th. Whatever it is, each operation ends once with a
// status that says so, its memory comes back, nothing stays behind, and the connection beside
// it goes on.
#include "tests/contract/pair.h"

#include <cstdio>
#include <optional>

#include <sluice/exchange/exchange.h>
#include <sluice/fault/injector.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::test {
namespace {

using fault::Action;
using fault::Call;

// Small messages ride in control messages on every path, large ones on none.
constexpr size_t kSmall = 100, kLarge = 100'000;
// Long enough for all of the work where nothing is lost.
constexpr Duration kPatience = 60ms;
constexpr uint64_t kMine = 999;  // what the program writes to memory that came back

// Outcomes a program can act on. Not kInternal, and nothing that blames the program.
bool clear(const Status& status) {
  switch (status.code()) {
    case Code::kOk: return true;
    case Code::kUnreachable:
    case Code::kTimedOut:
    case Code::kOutcomeUnknown:
    case Code::kCancelled:
    case Code::kNoMemory:
    case Code::kCorrupt: return !status.detail().empty();
    default: return false;
  }
}

// Two contexts, one connection that is never struck, and the injectors of both.
struct World {
  World() : pair(), client(inject(*pair.client_context)), server(inject(*pair.server_context)) {}
  static std::shared_ptr<fault::Injector> inject(Context& context) {
    return fault::inject(context, {.busy_percent = 20});
  }
  size_t outstanding() {
    return pair.client_context->arena().statistics().outstanding +
           pair.server_context->arena().statistics().outstanding;
  }
  void check_bystander() {
    Tag tag = ++rounds;
    Tensor there = tensor(*pair.server_context, kLarge, tag);
    auto key = pair.server.grant(there);
    REQUIRE(key.ok());
    REQUIRE(pair.client.send(tag, tensor(*pair.client_context, kLarge, tag), {.deadline = soon()})
                .ok());
    auto message =
        pair.server.receive_and_wait({.tag = tag}, room(*pair.server_context, kLarge), soon());
    auto read = pair.client.read_and_wait(*key, 0, room(*pair.client_context, kLarge), soon());
    REQUIRE(message.ok());
    REQUIRE(read.ok());
    CHECK(holds(message->buffer.bytes(), tag));
    CHECK(holds(read->buffer.bytes(), tag));
    CHECK(pair.server.revoke(*key).ok());
  }
  Pair pair;
  std::shared_ptr<fault::Injector> client, server;
  Tag rounds = 0;
};

// One round of everything over a connection of its own.
class Work {
 public:
  explicit Work(World& world) : world_(world), pair_(world.pair) {
    std::tie(near_, far_) = pair_.connect_again();
    near_core_ = near_.shared();
    far_core_ = far_.shared();
  }

  void run() {
    near_exchange_.emplace(*pair_.client_context);
    far_exchange_.emplace(*pair_.server_context);
    REQUIRE(near_exchange_->add(near_).ok());
    REQUIRE(far_exchange_->add(far_).ok());
    deadline_ = in(kPatience);
    messages();
    one_sided();
    keyed();
    // Comes before its receive is posted.
    pair_.until([&] { return far_core_->counters().messages_received >= 5; }, deadline_);
    receive(far_, *pair_.server_context, far_box_, 3, kSmall);
    // 20 s: none of them may hang.
    bool all = pair_.until([&] {
      return near_box_.all.size() + far_box_.all.size() >= expected_.size() && fetches_ready();
    });
    CHECK(all);
    judge_fetches();
    for (Expected& each : expected_) judge(each);
  }

  bool closed() const {
    return near_core_->state() == EndpointState::kClosed &&
           far_core_->state() == EndpointState::kClosed;
  }
  void close() {
    near_exchange_.reset();
    far_exchange_.reset();
    for (Endpoint* end : {&near_, &far_}) {
      Status status = end->close(in(kPatience));
      INFO("close: " << status.to_string());
      CHECK((status.ok() || status == Code::kTimedOut));
    }
    CHECK(pair_.until([&] { return closed(); }));
    for (const auto& core : {near_core_, far_core_}) {
      EndpointCounters counters = core->counters();
      CHECK(counters.posted == counters.completed);
      CHECK(counters.loans_outstanding == 0);
    }
    for (Expected& each : expected_) CHECK(each.box->count(each.id) == 1);
    CHECK(near_box_.all.size() + far_box_.all.size() == expected_.size());
    // Nobody writes to what has come back.
    for (const Buffer& buffer : returned_) CHECK(holds(buffer.bytes(), kMine));
  }

  // Operations that did not end ok, except the one that nothing could answer.
  int failed() const { return failed_; }
  int corrupt() const { return corrupt_; }
  int no_memory() const { return no_memory_; }

 private:
  struct Expected {
    OperationId id;
    Box* box;
    size_t size;
    uint64_t seed;
  };

  bool expect(Box& box, const Result<OperationId>& posted, size_t size, uint64_t seed) {
    INFO(posted.status().to_string());
    // The end may have come already.
    CHECK((posted.ok() || posted.code() == Code::kWrongState));
    if (!posted.ok()) ++failed_;
    if (posted.ok()) expected_.push_back({*posted, &box, size, seed});
    return posted.ok();
  }
  void send(Endpoint& from, Context& context, Box& box, Tag tag, size_t size, Level level) {
    expect(box, from.send(tag, tensor(context, size, tag), box.options(tag, deadline_, level)),
           size, tag);
  }
  void receive(Endpoint& at, Context& context, Box& box, Tag tag, size_t size) {
    expect(box, at.receive({.tag = tag}, room(context, size), box.options(tag, deadline_)), size,
           tag);
  }

  void messages() {
    Context &here = *pair_.client_context, &there = *pair_.server_context;
    receive(far_, there, far_box_, 1, kSmall);
    receive(far_, there, far_box_, 2, kLarge);
    receive(near_, here, near_box_, 4, kLarge);
    receive(near_, here, near_box_, 5, kSmall);
    send(near_, here, near_box_, 1, kSmall, Level::kSourceReusable);
    send(near_, here, near_box_, 2, kLarge, Level::kPlaced);
    send(near_, here, near_box_, 3, kSmall, Level::kPlaced);
    send(far_, there, far_box_, 4, kLarge, Level::kSourceReusable);
    send(far_, there, far_box_, 5, kSmall, Level::kPlaced);
  }

  void one_sided() {
    Context& here = *pair_.client_context;
    Tensor source = tensor(*pair_.server_context, kLarge, 6);
    Buffer target = room(*pair_.server_context, kLarge);
    auto readable = far_.grant(source);
    auto writable = far_.grant(target, {.rights = Right::kReadWrite});
    REQUIRE(readable.ok());
    REQUIRE(writable.ok());
    for (size_t size : {kSmall, kLarge}) {
      expect(near_box_, near_.read(*readable, 0, room(here, size), near_box_.options(6, deadline_)),
             size, 6);
      expect(near_box_,
             near_.write(*writable, 0, tensor(here, size, 7), near_box_.options(7, deadline_)),
             size, 7);
    }
  }

  void keyed() {
    // Asked for before and after it is there.
    view_.emplace(near_exchange_->fetch({"view", 1}, deadline_));
    REQUIRE(far_exchange_->publish({"view", 1}, tensor(*pair_.server_context, kLarge, 8)).ok());
    REQUIRE(far_exchange_->publish({"into", 1}, tensor(*pair_.server_context, kLarge, 9)).ok());
    into_.emplace(
        near_exchange_->fetch_into({"into", 1}, room(*pair_.client_context, kLarge), deadline_));
  }
  bool fetches_ready() { return view_->ready() && into_->ready(); }

  void note(const Status& status) {
    INFO(status.to_string());
    CHECK(clear(status));
    if (!status.ok()) ++failed_;
    if (status == Code::kCorrupt) ++corrupt_;
    if (status == Code::kNoMemory) ++no_memory_;
  }
  void take_back(Buffer&& buffer, bool ok, uint64_t seed, size_t size) {
    REQUIRE(buffer);
    if (ok) CHECK(holds(buffer.bytes().first(size), seed));
    fill(buffer.bytes(), kMine);
    returned_.push_back(std::move(buffer));
  }
  void judge(Expected& each) {
    Completion* ended = each.box->find(each.id);
    REQUIRE(ended != nullptr);
    note(ended->status);
    bool incoming = ended->kind == OperationKind::kReceive || ended->kind == OperationKind::kRead;
    REQUIRE(ended->buffers.size() == (incoming ? 1u : 0u));
    if (incoming) take_back(std::move(ended->buffers[0]), ended->status.ok(), each.seed, each.size);
  }
  void judge_fetches() {
    auto view = view_->take();
    note(view.status());
    if (view.ok()) CHECK(holds(view->value.bytes(), 8));
    Placed into = into_->take();
    note(into.status());
    take_back(into.take_buffer(), into.ok(), 9, kLarge);
    view_.reset();
    into_.reset();
  }

  World& world_;
  Pair& pair_;
  Endpoint near_, far_;
  std::shared_ptr<EndpointCore> near_core_, far_core_;
  Box near_box_, far_box_;
  std::optional<Exchange> near_exchange_, far_exchange_;
  std::optional<Fetch> view_;
  std::optional<FetchInto> into_;
  Instant deadline_{};
  std::vector<Expected> expected_;
  std::vector<Buffer> returned_;
  int failed_ = 0, corrupt_ = 0, no_memory_ = 0;
};

struct Tally {
  uint64_t struck = 0;                  // how many calls there were to strike
  uint64_t failed = 0;                  // of them, with an operation that did not end ok
  uint64_t corrupt = 0, no_memory = 0;  // of them, with one that ended so
};

bool breaks_path(Call call) { return call != Call::kExport && call != Call::kImport; }

Tally strike_each(World& world, fault::Injector& victim, Call call, Action action) {
  Tally tally;
  for (uint64_t nth = 1;; ++nth) {
    INFO("number " << nth << " of " << fault::to_string(call) << " " << fault::to_string(action)
                   << " at the " << (&victim == world.client.get() ? "client" : "server"));
    REQUIRE(nth < 500);
    victim.strike_next({.call = call, .nth = nth, .action = action});
    {
      Work work(world);
      work.run();
      // Both ends hear of a broken path, and need no deadline for it.
      if (victim.struck() && action == Action::kFail && breaks_path(call))
        CHECK(world.pair.until([&] { return work.closed(); }));
      work.close();
      tally.failed += work.failed() > 0;
      tally.corrupt += work.corrupt() > 0;
      tally.no_memory += work.no_memory() > 0;
    }
    if (!victim.struck()) break;
    ++tally.struck;
    INFO("the connection beside it");
    world.check_bystander();
    // Its last messages are answered by then, too.
    REQUIRE(world.pair.until([&] { return world.outstanding() == 0; }));
  }
  return tally;
}

Tally strike_both(World& world, Call call, Action action) {
  Tally tally;
  for (fault::Injector* victim : {world.client.get(), world.server.get()}) {
    Tally one = strike_each(world, *victim, call, action);
    tally.struck += one.struck;
    tally.failed += one.failed;
    tally.corrupt += one.corrupt;
    tally.no_memory += one.no_memory;
  }
  std::printf("%s %s: %lu strikes, %lu with failures, %lu of them kCorrupt\n",
              fault::to_string(call).c_str(), fault::to_string(action).c_str(), tally.struck,
              tally.failed, tally.corrupt);
  return tally;
}

TEST_CASE("what was sent before a close arrives although the link had no room for it",
          "[contract][faults]") {
  NothingLeftBehind audit;
  Pair plain;
  fault::inject(*plain.client_context, {.seed = 2, .busy_percent = 80});
  auto [near, far] = plain.connect_again();
  for (Tag tag = 0; tag < 20; ++tag)
    REQUIRE(near.send(tag, tensor(*plain.client_context, kSmall, tag)).ok());
  std::shared_ptr<EndpointCore> core = near.shared();
  REQUIRE(near.close(soon()).ok());
  CHECK(core->counters().messages_sent >= 20);
  for (Tag tag = 0; tag < 20; ++tag) {
    auto got = far.receive_and_wait({.tag = tag}, room(*plain.server_context, kSmall), soon());
    INFO(tag << ": " << got.status().to_string());
    REQUIRE(got.ok());
    CHECK(holds(got->buffer.bytes(), tag));
  }
  CHECK(far.close(soon()).ok());
}

TEST_CASE("memory that the link still reads does not come back with the peer's answer",
          "[contract][faults]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    fault::inject(*pair.server_context, {.seed = 2, .late_percent = 100, .most_turns = 100});
    auto [near, far] = pair.connect_again();
    Exchange here(*pair.client_context), there(*pair.server_context);
    REQUIRE(here.add(near).ok());
    REQUIRE(there.add(far).ok());
    for (uint64_t step = 1; step <= 10; ++step) {
      auto fetch = here.fetch_into({"w", step}, room(*pair.client_context, kLarge), soon());
      auto publication = there.publish({"w", step}, tensor(*pair.server_context, kLarge, step));
      REQUIRE(publication.ok());
      REQUIRE(pair.until([&] { return fetch.ready() && publication->ready(); }));
      CHECK(fetch.take().ok());
      CHECK(publication->take().try_thaw().has_value());
    }
  }
}

TEST_CASE("the path breaks in any call of it", "[contract][faults]") {
  NothingLeftBehind audit;
  World world;
  std::vector<Call> calls = {Call::kSend, Call::kMessage, Call::kWritable};
  if (!path_has_views())
    calls.insert(calls.end(), {Call::kPush, Call::kPlaced, Call::kPushed, Call::kFlush});
  for (Call call : calls) {
    Tally tally = strike_both(world, call, Action::kFail);
    CHECK(tally.struck > 0);
    CHECK(tally.failed > 0);
  }
}

TEST_CASE("memory cannot be announced or mapped", "[contract][faults]") {
  NothingLeftBehind audit;
  World world;
  if (!path_has_views()) return;
  for (Call call : {Call::kExport, Call::kImport}) {
    Tally tally = strike_both(world, call, Action::kFail);
    CHECK(tally.struck > 0);
    CHECK(tally.failed == tally.struck);
    // A failed import ends the connection; who wrote to it hears only that.
    if (call == Call::kExport) CHECK(tally.no_memory == tally.struck);
  }
}

TEST_CASE("something is lost on the way", "[contract][faults]") {
  NothingLeftBehind audit;
  World world;
  std::vector<Call> calls = {Call::kSend, Call::kMessage, Call::kWritable};
  if (!path_has_views()) calls.insert(calls.end(), {Call::kPush, Call::kPlaced});
  for (Call call : calls) {
    Tally tally = strike_both(world, call, Action::kDrop);
    CHECK(tally.struck > 0);
    CHECK(tally.failed > 0);
  }
}

TEST_CASE("a message is shorter than its sender meant", "[contract][faults]") {
  NothingLeftBehind audit;
  World world;
  Tally header = strike_both(world, Call::kMessage, Action::kTruncateHeader);
  CHECK(header.corrupt > 0);
  Tally payload = strike_both(world, Call::kMessage, Action::kTruncatePayload);
  CHECK(payload.corrupt > 0);
  if (path_has_views()) return;
  Tally data = strike_both(world, Call::kPlaced, Action::kTruncatePayload);
  CHECK(data.failed > 0);
}

TEST_CASE("a message overtakes another", "[contract][faults]") {
  NothingLeftBehind audit;
  World world;
  Tally tally = strike_both(world, Call::kMessage, Action::kReorder);
  CHECK(tally.struck > 0);
}

}  // namespace
}  // namespace sluice::test
