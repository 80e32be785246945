// How many calls of ibv_post_send an operation takes: one for each list of requests, at once
// for what is small; and what was posted of a list that the device takes in part.
#include "tests/verbs/backend/scene.h"

#include <errno.h>

namespace sluice::verbs {
namespace {

constexpr size_t kChunk = 64 << 10;
// Requests of one list (queue_pair.h).
constexpr size_t kList = 16;

FakeOptions small_chunks() {
  FakeOptions options;
  options.devices[0].max_msg_sz = kChunk;
  return options;
}

// Calls of post_send since it was made.
class Doorbells {
 public:
  explicit Doorbells(Fabric& fabric) : fabric_(fabric), before_(fabric->calls("post_send")) {}
  uint64_t operator()() const { return fabric_->calls("post_send") - before_; }

 private:
  Fabric& fabric_;
  uint64_t before_;
};

struct Scene {
  explicit Scene(FakeOptions options = small_chunks()) : fabric(std::move(options)) {
    REQUIRE(duo.open().ok());
    expect_traffic(duo, duo.client, duo.server);
    duo.settle();
  }
  struct Granted {
    Buffer memory;
    RemoteKey key;
  };
  // Memory of the server, filled with 7.
  Granted grant(size_t bytes, Right rights) {
    Buffer memory = test::filled(*duo.far, bytes, 7);
    auto key = duo.server.grant(memory, {.rights = rights});
    REQUIRE(key.ok());
    return {std::move(memory), *key};
  }
  void finish(Tally& tally) {
    CHECK(duo.until([&] { return tally.ended(); }));
    INFO(tally.text());
    CHECK(tally.failures() == 0);
    tally.check();
  }
  Fabric fabric;
  Duo duo;
};

TEST_CASE_METHOD(Scene, "a read or write of N chunks takes one call for each list of them",
                 "[verbs][doorbells]") {
  for (size_t chunks : {size_t{1}, size_t{2}, size_t{8}, kList, 2 * kList, 3 * kList + 1}) {
    INFO(chunks << " chunks");
    auto [memory, key] = grant(chunks * kChunk, Right::kReadWrite);
    for (bool write : {false, true}) {
      INFO("write " << write);
      Tally& tally = duo.tally();
      Doorbells rung(fabric);
      if (write) {
        tally.expect(
            duo.client.write(key, 0, test::tensor(*duo.near, chunks * kChunk, 8), tally.options()),
            OperationKind::kWrite);
      } else {
        Buffer room = test::room(*duo.near, chunks * kChunk);
        tally.expect(duo.client.read(key, 0, std::move(room), tally.options()),
                     OperationKind::kRead, 1, 7);
      }
      finish(tally);
      CHECK(rung() == (chunks + kList - 1) / kList);
    }
    CHECK(test::holds(memory.bytes(), 8));
    CHECK(duo.server.revoke(key).ok());
  }
  CHECK(fabric->largest_send_list() == kList);
}

TEST_CASE_METHOD(Scene, "an operation that finds the device idle leaves in its own call",
                 "[verbs][doorbells]") {
  auto [memory, key] = grant(kChunk, Right::kAll);
  for (OperationKind kind : {OperationKind::kRead, OperationKind::kWrite, OperationKind::kAtomic,
                             OperationKind::kRead}) {
    INFO(static_cast<int>(kind));
    Tally& tally = duo.tally();
    Doorbells rung(fabric);
    if (kind == OperationKind::kRead) {
      Buffer room = test::room(*duo.near, kChunk);
      tally.expect(duo.client.read(key, 0, std::move(room), tally.options()), kind, 1);
    } else if (kind == OperationKind::kWrite) {
      Tensor tensor = test::tensor(*duo.near, kChunk, 8);
      tally.expect(duo.client.write(key, 0, std::move(tensor), tally.options()), kind);
    } else {
      Buffer room = test::room(*duo.near, 8);
      tally.expect(duo.client.atomic(key, 0, {.operand = 1}, std::move(room), tally.options()),
                   kind, 1);
    }
    CHECK(rung() == 1);
    finish(tally);
    CHECK(rung() == 1);
  }
  CHECK(duo.server.revoke(key).ok());
}

// The fabric refuses what is asked for by a key that is no more.
TEST_CASE_METHOD(Scene, "memory that was given back and comes again goes by its new registration",
                 "[verbs][doorbells]") {
  constexpr size_t kExtent = 16 << 20;  // one of its own
  auto [memory, key] = grant(kChunk, Right::kReadWrite);
  for (bool write : {true, false}) {
    INFO("write " << write);
    const std::byte* before = nullptr;
    for (int round = 0; round < 3; ++round) {
      Buffer buffer = test::room(*duo.near, kExtent);
      if (round > 0) REQUIRE(buffer.data() == before);
      before = buffer.data();
      REQUIRE(buffer.reshape(TensorDescriptor::bytes(kChunk)).ok());
      Tally& tally = duo.tally();
      if (write) {
        test::fill(buffer.bytes(), 8);
        tally.expect(duo.client.write(key, 0, std::move(buffer).freeze(), tally.options()),
                     OperationKind::kWrite);
      } else {
        tally.on_end = [](const Completion& end) { CHECK(test::holds(end.buffers[0].bytes(), 8)); };
        tally.expect(duo.client.read(key, 0, std::move(buffer), tally.options()),
                     OperationKind::kRead, 1);
      }
      finish(tally);
      CHECK(duo.near->arena().trim() >= kExtent);
    }
  }
  CHECK(test::holds(memory.bytes(), 8));
  CHECK(duo.server.revoke(key).ok());
}

TEST_CASE_METHOD(Scene, "receives go back to the device eight at a time", "[verbs][doorbells]") {
  const uint64_t before = fabric->calls("post_recv");
  Gain frames("verbs.messages_posted");
  for (int i = 0; i < 256; ++i) {
    Tally &sent = duo.tally(), &received = duo.tally();
    Buffer room = test::room(*duo.far, 100);
    received.expect(duo.server.receive({.tag = 1}, std::move(room), received.options()),
                    OperationKind::kReceive, 1, 1);
    sent.expect(duo.client.send(1, test::tensor(*duo.near, 100, 1), sent.options()),
                OperationKind::kSend);
    finish(sent);
    finish(received);
  }
  const uint64_t calls = fabric->calls("post_recv") - before;
  CHECK(frames() >= 256);
  // Each end has up to seven that it has not given back, from before or at the end.
  CHECK(calls + 2 >= frames() / 8);
  CHECK(calls <= frames() / 8 + 2);
}

TEST_CASE_METHOD(Scene,
                 "operations of one turn go out together, but for the first of an idle device",
                 "[verbs][doorbells]") {
  auto [memory, key] = grant(kChunk, Right::kAll);
  Tally& tally = duo.tally();
  Doorbells rung(fabric);
  for (int i = 0; i < 5; ++i) {
    tally.expect(duo.client.read(key, 0, test::room(*duo.near, kChunk), tally.options()),
                 OperationKind::kRead, 1);
    tally.expect(
        duo.client.atomic(key, 0, {.operand = 1}, test::room(*duo.near, 8), tally.options()),
        OperationKind::kAtomic, 1);
  }
  CHECK(rung() == 1);
  (void)duo.near->progress();
  CHECK(rung() == 2);
  finish(tally);
  CHECK(rung() == 2);
  CHECK(duo.server.revoke(key).ok());
}

TEST_CASE_METHOD(Scene, "a small message is posted at once, not at the next turn",
                 "[verbs][doorbells]") {
  Tally &sent = duo.tally(), &received = duo.tally();
  for (Tag tag = 1; tag <= 3; ++tag) {
    received.expect(duo.server.receive({.tag = tag}, test::room(*duo.far, 100), received.options()),
                    OperationKind::kReceive, 1, tag);
    Doorbells rung(fabric);
    sent.expect(duo.client.send(tag, test::tensor(*duo.near, 100, tag), sent.options()),
                OperationKind::kSend);
    CHECK(rung() == 1);
  }
  finish(sent);
  finish(received);
}

TEST_CASE_METHOD(Scene, "a window goes out with the message that names it", "[verbs][doorbells]") {
  Tally &sent = duo.tally(), &received = duo.tally();
  Gain bound("verbs.windows_bound");
  Doorbells rung(fabric);
  sent.expect(duo.client.send(1, test::tensor(*duo.near, 8 * kChunk, 1), sent.options()),
              OperationKind::kSend);
  CHECK(bound() == 1);
  CHECK(rung() == 1);
  Buffer room = test::room(*duo.far, 8 * kChunk);
  received.expect(duo.server.receive({.tag = 1}, std::move(room), received.options()),
                  OperationKind::kReceive, 1, 1);
  finish(sent);
  finish(received);
  // The offer with its window, the reads, what says that they are done, the window's end.
  CHECK(rung() == 4);
}

TEST_CASE_METHOD(Scene,
                 "an early request and its answer take a call each, and one for the window's end",
                 "[verbs][doorbells]") {
  Tally &asked = duo.tally(), &answered = duo.tally();
  Shelf& shelf = duo.shelf(*duo.far, answered);
  shelf.size = 8 * kChunk;
  duo.server.core().set_want_handler(&shelf);
  WantOptions want{
      .key_id = 40, .key = "key", .step = 1, .destination = test::room(*duo.near, 8 * kChunk)};
  Doorbells rung(fabric);
  asked.expect(duo.client.core().post_want(want, asked.options()), OperationKind::kWant, 1, 41);
  CHECK(rung() == 1);
  finish(asked);
  finish(answered);
  CHECK(rung() <= 4);
  duo.server.core().set_want_handler(nullptr);
}

// Whatever was posted comes back, and nothing is waited for that was not.
TEST_CASE("of a list that the device takes in part, what it took is accounted for",
          "[verbs][doorbells]") {
  for (uint64_t refused = 1; refused <= 8; ++refused) {
    for (auto order : {FakePolicy::Order::kHonest, FakePolicy::Order::kSlow}) {
      INFO("request " << refused << " order " << static_cast<int>(order));
      FakeOptions options = small_chunks();
      options.policy = {.order = order, .ticks = 50};
      Scene scene(options);
      Bystander bystander(scene.duo);
      Gain overdue("verbs.flushes_overdue"), posted("verbs.doorbells");
      auto [memory, key] = scene.grant(8 * kChunk, Right::kRead);
      Tally& tally = scene.duo.tally();
      scene.fabric.with_faults([&](FakeFaults& faults) { faults.refuse_request(refused, ENOMEM); });
      uint64_t carried = scene.fabric->bytes_carried();
      tally.expect(
          scene.duo.client.read(key, 0, test::room(*scene.duo.near, 8 * kChunk), tally.options()),
          OperationKind::kRead, 1);
      CHECK(scene.duo.until([&] { return tally.ended(); }));
      tally.check();
      REQUIRE(tally.failures() == 1);
      CHECK(tally.text().find("refuses a request") != std::string::npos);
      CHECK(scene.fabric->bytes_carried() - carried <= (refused - 1) * kChunk);
      CHECK(overdue() == 0);
      CHECK(scene.duo.until([&] { return scene.duo.both_closed(); }));
    }
  }
}

TEST_CASE(
    "a list that was refused in part is not waited for, also where nothing more can be posted",
    "[verbs][doorbells]") {
  for (uint64_t refused = 1; refused <= 8; ++refused) {
    INFO("request " << refused);
    Scene scene;
    Gain overdue("verbs.flushes_overdue");
    auto [memory, key] = scene.grant(8 * kChunk, Right::kRead);
    Tally& tally = scene.duo.tally();
    scene.fabric.with_faults([&](FakeFaults& faults) {
      faults.refuse_request(refused, ENOMEM);
      faults.fail("post_send", 2, ENOMEM, 1'000'000);
    });
    tally.expect(
        scene.duo.client.read(key, 0, test::room(*scene.duo.near, 8 * kChunk), tally.options()),
        OperationKind::kRead, 1);
    CHECK(scene.duo.until([&] { return tally.ended(); }));
    tally.check();
    CHECK(tally.failures() == 1);
    CHECK(scene.duo.until([&] { return scene.duo.both_closed(); }));
    CHECK(overdue() == 0);
  }
}

// The fabric says so where a region goes before the requests that use it, or is left.
TEST_CASE("memory registered for a request goes with it, posted or refused", "[verbs][doorbells]") {
  static std::vector<std::byte> own(8 * 4096);
  for (uint64_t refused = 1; refused <= 8; ++refused) {
    INFO("request " << refused);
    FakeOptions options;
    options.policy = {.order = FakePolicy::Order::kSlow, .ticks = 50};
    Scene scene(options);
    Gain foreign("verbs.foreign_registrations"), overdue("verbs.flushes_overdue");
    auto [memory, key] = scene.grant(own.size(), Right::kWrite);
    Tally& tally = scene.duo.tally();
    scene.fabric.with_faults([&](FakeFaults& faults) { faults.refuse_request(refused, EINVAL); });
    for (size_t i = 0; i < 8; ++i) {
      auto source = Tensor::wrap(
          own.data() + i * 4096, TensorDescriptor::bytes(4096), [](void*) noexcept {}, nullptr);
      REQUIRE(source.ok());
      tally.expect(scene.duo.client.write(key, i * 4096, std::move(*source), tally.options()),
                   OperationKind::kWrite);
    }
    CHECK(scene.duo.until([&] { return tally.ended(); }));
    // The first leaves at once: if it is refused, the connection has ended before the others.
    CHECK(foreign() == (refused == 1 ? 1 : 8));
    tally.check();
    CHECK(tally.failures() >= 9 - refused);
    CHECK(overdue() == 0);
    CHECK(scene.duo.until([&] { return scene.duo.both_closed(); }));
  }
}

// What the device never saw had no effect, and says so: not kOutcomeUnknown.
TEST_CASE_METHOD(Scene, "an atomic after a request that was refused was not done",
                 "[verbs][doorbells]") {
  auto [memory, key] = grant(kChunk, Right::kAll);
  Tally &refused = duo.tally(), &after = duo.tally();
  fabric.with_faults([](FakeFaults& faults) { faults.refuse_request(1, ENOMEM); });
  refused.expect(duo.client.write(key, 0, test::tensor(*duo.near, kChunk, 8), refused.options()),
                 OperationKind::kWrite);
  Code end = Code::kOk;
  after.on_end = [&](const Completion& completion) { end = completion.status.code(); };
  after.expect(duo.client.atomic(key, 0, {.operand = 1}, test::room(*duo.near, 8), after.options()),
               OperationKind::kAtomic, 1);
  CHECK(duo.until([&] { return refused.ended() && after.ended(); }));
  CHECK(end == Code::kInternal);
  CHECK(test::holds(memory.bytes(), 7));
  CHECK(duo.until([&] { return duo.both_closed(); }));
}

TEST_CASE("the N-th request is refused, for every N of a whole scenario", "[verbs][doorbells]") {
  auto scenario = [](Duo& duo) {
    if (duo.open().ok()) {
      Traffic traffic(duo, duo.client, duo.server, 1s);
      traffic.post(3 * kChunk);
      traffic.finish();
    }
    duo.close();
  };
  Gain overdue("verbs.flushes_overdue");
  bool met = true;
  uint64_t n = 1;
  for (; met; ++n) {
    INFO("request " << n);
    Fabric fabric(small_chunks());
    fabric.with_faults([&](FakeFaults& faults) { faults.refuse_request(n, ENOMEM); });
    DuoOptions impatient;
    impatient.connect.timeout = 1s;
    Duo duo(impatient);
    scenario(duo);
    met = fabric.with_faults([](FakeFaults& faults) { return faults.plans_left(); }) == 0;
  }
  CHECK(n > 40);
  CHECK(overdue() == 0);
}

}  // namespace
}  // namespace sluice::verbs
