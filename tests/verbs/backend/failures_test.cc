// Queues that never flush, objects that cannot be destroyed, wires that are cut in the
// middle of everything, a thousand connections: what ends, when, and what is left.
#include "tests/verbs/backend/scene.h"

#include <errno.h>

namespace sluice::verbs {
namespace {

constexpr size_t kLarge = 5'000'003;  // several chunks
constexpr size_t kHuge = 20'000'003;  // more than is under way at once

TEST_CASE("a queue that never flushes holds up its end for a bounded time", "[verbs][failures]") {
  for (bool abort : {false, true}) {
    Fabric fabric;
    Duo duo;
    REQUIRE(duo.open().ok());
    Gain overdue("verbs.flushes_overdue");
    {
      Bystander bystander(duo);
      Traffic traffic(duo, duo.client, duo.server, 2s);
      fabric->set_policy({.order = FakePolicy::Order::kSlow, .ticks = 100});
      traffic.post(200'000);
      fabric.with_faults([](FakeFaults& f) { f.never_flush = true; });
      Instant before = now();
      if (abort) {
        duo.client.core().abort(Status(Code::kCancelled, Scope::kEndpoint, "test", "enough"));
      } else {
        REQUIRE(fabric->raise_qp(IBV_EVENT_QP_FATAL, fabric->qp_numbers().front()));
      }
      CHECK(duo.until([&] { return duo.both_closed(); }, in(10s)));
      CHECK(now() - before < 5s);
      traffic.finish();
      CHECK(traffic.failures() > 0);
      fabric.with_faults([](FakeFaults& f) { f.never_flush = false; });
      fabric->set_policy({});
    }
    CHECK(overdue() >= 1);
    expect_reconnect(duo);
  }
}

TEST_CASE("a queue pair that cannot be destroyed at once is counted, and goes with the device",
          "[verbs][failures]") {
  Fabric fabric;
  Gain stuck("verbs.queue_pairs_stuck"), quarantined("verbs.memory_quarantined");
  {
    Duo duo;
    REQUIRE(duo.open().ok());
    fabric.with_faults([](FakeFaults& f) { f.fail("destroy_qp", 1, EBUSY); });
    Traffic traffic(duo, duo.client, duo.server, 2s);
    traffic.post();
    duo.client.core().abort(Status(Code::kCancelled, Scope::kEndpoint, "test", "enough"));
    CHECK(duo.until([&] { return duo.both_closed(); }, in(10s)));
    traffic.finish();
    expect_reconnect(duo);
  }
  CHECK(stuck() == 1);
  CHECK(quarantined() == 0);  // it had given back all its requests
}

TEST_CASE("any destroying call may fail, and nothing hangs", "[verbs][failures]") {
  for (const char* call : {"dereg_mr", "dealloc_mw", "destroy_cq", "dealloc_pd",
                           "destroy_comp_channel", "close_device", "destroy_id"}) {
    for (uint64_t nth : {1, 2}) {
      INFO(call << " " << nth);
      Fabric fabric;
      fabric.expected_complaint = " ";
      Duo duo;
      REQUIRE(duo.open().ok());
      fabric.with_faults([&](FakeFaults& f) { f.fail(call, nth, EBUSY); });
      Traffic traffic(duo, duo.client, duo.server, 2s);
      traffic.post();
      traffic.finish();
      CHECK(traffic.failures() == 0);
    }
  }
}

// What is cut, once the traffic is under way: after so many ticks.
void cut(uint64_t ticks, FakeFaults::Link link, size_t size) {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  fabric->set_policy({.order = FakePolicy::Order::kSlow, .ticks = 40});
  Traffic traffic(duo, duo.client, duo.server, 1s);
  traffic.post(size);
  for (uint64_t i = 0; i < ticks; ++i) (void)(duo.near->progress() + duo.far->progress());
  fabric.with_faults([&](FakeFaults& f) { f.link = link; });
  Instant before = now();
  traffic.finish();
  INFO(traffic.text());
  CHECK(traffic.failures() > 0);
  CHECK(now() - before < 3s);
  CHECK(duo.until([&] { return duo.both_closed(); }, in(3s)));
  CHECK(traffic.text().find("unplugged, or its link is down") != std::string::npos);
  // When it is whole again.
  fabric.with_faults([](FakeFaults& f) { f.link = FakeFaults::Link::kUp; });
  expect_reconnect(duo);
}

TEST_CASE(
    "a wire that is cut in the middle of everything ends every operation in time, and says so",
    "[verbs][failures]") {
  for (uint64_t ticks : {0, 3, 10, 20}) {
    INFO("after " << ticks << " rounds");
    cut(ticks, FakeFaults::Link::kCut, kLarge);
    cut(ticks, FakeFaults::Link::kAnswersLost, kLarge);
  }
}

// A window is closed in its turn, behind messages that the wire makes the device repeat.
TEST_CASE("a fetch that ended well waits for its device until its own deadline",
          "[verbs][failures]") {
  Fabric fabric({.retry_ticks = 100'000});
  Duo duo;
  REQUIRE(duo.open().ok());
  Tally &near = duo.tally(), &far = duo.tally();
  Shelf& shelf = duo.shelf(*duo.far, far);
  shelf.size = kLarge;
  duo.server.core().set_want_handler(&shelf);
  duo.settle();
  fabric.with_faults([](FakeFaults& f) { f.link = FakeFaults::Link::kAnswersLost; });
  WantOptions want{
      .key_id = 0, .key = "k", .step = 1, .destination = test::room(*duo.near, kLarge)};
  near.expect(duo.client.core().post_want(want, near.options()), OperationKind::kWant, 1);
  REQUIRE(duo.until([&] { return duo.client.counters().bytes_received >= kLarge; }, in(3s)));
  CHECK_FALSE(near.ended());
  // Longer than an operation that was ended early would wait.
  for (Instant until = in(1100ms); now() < until;) {}
  fabric.with_faults([](FakeFaults& f) { f.link = FakeFaults::Link::kUp; });
  CHECK(duo.until(
      [&] {
        fabric->advance(100);
        return near.ended() && far.ended();
      },
      in(3s)));
  near.check();
  CHECK(near.failures() == 0);
  CHECK(duo.connected());
}

// Its device answers for it; nobody lets go of what it was offered.
TEST_CASE("what a stopped process was offered ends in time, also when nothing else is under way",
          "[verbs][failures]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  duo.settle();
  duo.stop_far(true);
  Tally& near = duo.tally();
  near.limit = 200ms;
  SECTION("a message") {
    near.expect(duo.client.send(1, test::tensor(*duo.near, kLarge, 7), near.options()),
                OperationKind::kSend);
  }
  SECTION("a destination") {
    WantOptions want{
        .key_id = 0, .key = "k", .step = 1, .destination = test::room(*duo.near, kLarge)};
    near.expect(duo.client.core().post_want(want, near.options()), OperationKind::kWant, 1);
  }
  REQUIRE(near.refused.empty());
  for (Instant limit = in(5s); !near.ended() && now() < limit;) (void)duo.near->progress();
  duo.stop_far(false);
  REQUIRE(near.ended());
  near.check();
  CHECK(near.failures() == 1);
  CHECK(duo.connected());
}

TEST_CASE("one connection's wire is cut, and the others go on", "[verbs][failures]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  {
    Bystander bystander(duo);
    uint32_t first = fabric->qp_numbers().front();
    fabric.with_faults([&](FakeFaults& f) { f.cut_qps.insert(first); });
    Traffic traffic(duo, duo.client, duo.server, 1s);
    traffic.post(kLarge);
    traffic.finish();
    CHECK(traffic.failures() > 0);
  }
  CHECK(duo.until([&] { return duo.both_closed(); }, in(10s)));
}

TEST_CASE("both ends of an idle connection notice that the wire is cut", "[verbs][failures]") {
  for (bool sleeping : {false, true}) {
    INFO((sleeping ? "asleep" : "polling"));
    Fabric fabric;
    Duo duo;
    REQUIRE(duo.open().ok());
    duo.sleeping = sleeping;
    Gain probes("verbs.probes_posted"), messages("verbs.messages_posted"),
        unplugged("verbs.peers_unplugged");
    // While it is whole they ask, and all is well.
    CHECK(duo.until([&] { return probes() >= 4; }));
    duo.settle();
    CHECK(duo.connected());
    CHECK(messages() == 0);
    fabric.with_faults([](FakeFaults& f) { f.link = FakeFaults::Link::kCut; });
    CHECK(duo.until([&] { return duo.both_closed(); }));
    CHECK(unplugged() == 2);
    fabric.with_faults([](FakeFaults& f) { f.link = FakeFaults::Link::kUp; });
    duo.sleeping = false;
    expect_reconnect(duo);
  }
}

TEST_CASE("a device that neither does nor refuses what it is asked is given up after nine seconds",
          "[verbs][failures]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  duo.sleeping = true;
  Gain stuck("verbs.queues_stuck"), unplugged("verbs.peers_unplugged");
  Tally& near = duo.tally();
  near.limit = 30s;
  fabric.with_faults([](FakeFaults& f) { f.link = FakeFaults::Link::kStuck; });
  near.expect(duo.client.send(1, test::tensor(*duo.near, 100, 1), near.options()),
              OperationKind::kSend);
  CHECK(duo.until([&] { return duo.both_closed(); }, in(20s)));
  CHECK(near.failures() == 1);
  near.check();
  CHECK(stuck() >= 1);  // who gives up first tells the other, by way of the connection manager
  CHECK(unplugged() == 0);
  fabric.with_faults([](FakeFaults& f) { f.link = FakeFaults::Link::kUp; });
  duo.sleeping = false;
  expect_reconnect(duo);
}

TEST_CASE("one large operation of each kind is cut", "[verbs][failures]") {
  for (const char* kind : {"read", "write", "fetch", "fetch into"}) {
    INFO(kind);
    Fabric fabric;
    Duo duo;
    REQUIRE(duo.open().ok());
    Tally &near = duo.tally(), &far = duo.tally();
    near.limit = far.limit = 1s;
    Shelf& shelf = duo.shelf(*duo.far, far);
    shelf.size = kHuge;
    duo.server.core().set_want_handler(&shelf);
    fabric->set_policy({.order = FakePolicy::Order::kSlow, .ticks = 3});
    Buffer memory = test::filled(*duo.far, kHuge, 5);
    auto key = duo.server.grant(memory, {.rights = Right::kReadWrite});
    REQUIRE(key.ok());
    std::string name = kind;
    uint64_t carried = fabric->bytes_carried();
    if (name == "read")
      near.expect(duo.client.read(*key, 0, test::room(*duo.near, kHuge), near.options()),
                  OperationKind::kRead, 1);
    if (name == "write")
      near.expect(duo.client.write(*key, 0, test::tensor(*duo.near, kHuge, 1), near.options()),
                  OperationKind::kWrite);
    if (name == "fetch" || name == "fetch into") {
      WantOptions want{.key_id = 0, .key = "k", .step = 1, .destination = {}};
      if (name == "fetch into") want.destination = test::room(*duo.near, kHuge);
      near.expect(duo.client.core().post_want(want, near.options()), OperationKind::kWant,
                  name == "fetch" ? 0 : 1);
    }
    REQUIRE(duo.until([&] { return fabric->bytes_carried() - carried > 1'000'000; }, in(5s)));
    CHECK_FALSE(near.ended());
    fabric.with_faults([&](FakeFaults& f) { f.link = FakeFaults::Link::kCut; });
    CHECK(duo.until([&] { return near.ended() && far.ended(); }, in(3s)));
    near.check();
    far.check();
    CHECK(near.failures() == 1);
    CHECK(duo.until(
        [&] {
          return duo.client.state() == EndpointState::kClosed ||
                 duo.server.state() == EndpointState::kClosed;
        },
        in(3s)));
    CHECK_FALSE(near.text().empty());
    // Who has nothing under way notices later.
    duo.server.core().abort(Status(Code::kCancelled, Scope::kEndpoint, "test", "enough"));
    duo.client.core().abort(Status(Code::kCancelled, Scope::kEndpoint, "test", "enough"));
    CHECK(duo.until([&] { return duo.both_closed(); }, in(3s)));
    fabric.with_faults([](FakeFaults& f) { f.link = FakeFaults::Link::kUp; });
  }
}

TEST_CASE("after an abort nothing writes to memory that came back", "[verbs][failures]") {
  for (int rounds : {0, 1, 3, 10}) {
    INFO("after " << rounds << " rounds");
    Fabric fabric;
    Duo duo;
    REQUIRE(duo.open().ok());
    fabric->set_policy({.order = FakePolicy::Order::kSlow, .ticks = 40});
    Buffer memory = test::filled(*duo.far, kLarge, 5);
    auto key = duo.server.grant(memory, {.rights = Right::kReadWrite});
    REQUIRE(key.ok());
    Tally& tally = duo.tally();
    std::vector<Buffer> back;
    tally.on_end = [&](const Completion& c) {
      back.emplace_back(std::move(const_cast<Completion&>(c).buffers[0]));
      test::fill(back.back().bytes(), 6);
    };
    tally.expect(duo.client.read(*key, 0, test::room(*duo.near, kLarge), tally.options()),
                 OperationKind::kRead, 1);
    for (int i = 0; i < rounds; ++i) (void)(duo.near->progress() + duo.far->progress());
    CHECK_FALSE(tally.ended());
    duo.client.core().abort(Status(Code::kCancelled, Scope::kEndpoint, "test", "enough"));
    CHECK(duo.until([&] { return tally.ended(); }, in(10s)));
    fabric->advance(1000);
    duo.settle();
    REQUIRE(back.size() == 1);
    CHECK(test::holds(back[0].bytes(), 6));
    tally.on_end = nullptr;
  }
}

TEST_CASE("a thousand connections come and go, and the census is flat", "[verbs][failures]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  expect_traffic(duo, duo.client, duo.server);  // the arenas have what they need
  duo.settle();
  std::string before = fabric->census().text();
  size_t fds = test::holdings().descriptors.size();
  for (int i = 0; i < 1000; ++i) {
    auto made = duo.connect();
    REQUIRE(made.ok());
    auto [client, server] = std::move(made).value();
    if (i % 50 == 0) {
      Traffic traffic(duo, client, server);
      traffic.post();
      traffic.finish();
      CHECK(traffic.failures() == 0);
    }
    switch (i % 4) {
      case 0: CHECK(client.close(soon()).ok()); break;
      case 1: CHECK(server.close(soon()).ok()); break;
      case 2: client = Endpoint(); break;
      default: {
        client.core().start_close();
        server.core().start_close();
      }
    }
    CHECK(duo.until(
        [&] {
          return (!client || client.state() == EndpointState::kClosed) &&
                 (!server || server.state() == EndpointState::kClosed);
        },
        in(10s)));
    if (i % 100 != 99) continue;
    duo.settle();
    CHECK(fabric->census().text() == before);
    CHECK(test::holdings().descriptors.size() == fds);
  }
  expect_traffic(duo, duo.client, duo.server);
}

}  // namespace
}  // namespace sluice::verbs
