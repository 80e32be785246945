// What a device says without being asked, and what it forgets to say: completion events that
// are lost or late while both sides sleep, devices that fail, ports that go and come.
#include <poll.h>

#include <algorithm>

#include "tests/verbs/backend/scene.h"

namespace sluice::verbs {
namespace {

bool readable(Context& context) {
  pollfd descriptor{context.fd(), POLLIN, 0};
  return ::poll(&descriptor, 1, 0) == 1;
}

// A message to somebody who sleeps: its event is the one that matters.
void send_to_sleeper(Duo& duo, const std::function<void()>& before_send,
                     const std::function<void()>& sent) {
  Tally& tally = duo.tally();
  tally.expect(duo.server.receive({.tag = 1}, test::room(*duo.far, 100), tally.options()),
               OperationKind::kReceive, 1, 1);
  duo.settle();
  // Between the last look at the clock and falling asleep a busy machine lets time pass.
  Instant until = in(3ms);
  while (now() < until) continue;
  REQUIRE(duo.far->prepare_to_sleep());
  before_send();
  REQUIRE(duo.client.send(1, test::tensor(*duo.near, 100, 1)).ok());
  sent();
  CHECK(duo.until([&] { return tally.ended(); }, in(10s)));
  tally.check();
  CHECK(tally.failures() == 0);
}

FakeOptions two_devices() {
  FakeOptions two;
  two.devices = {FakeDeviceOptions{.name = "fake0", .ipv4 = "127.0.0.1"},
                 FakeDeviceOptions{.name = "fake1", .ipv4 = "127.0.0.9"}};
  return two;
}

TEST_CASE("honest events wake whoever sleeps, and none is missed", "[verbs][events]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  Gain missed("verbs.missed_events");
  duo.sleeping = true;
  for (int i = 0; i < 100; ++i) {
    send_to_sleeper(
        duo, [&] { CHECK_FALSE(readable(*duo.far)); }, [&] { CHECK(readable(*duo.far)); });
  }
  expect_traffic(duo, duo.client, duo.server);
  // The watchdog looks, and finds nothing: that is no miss.
  (void)duo.until([&] { return duo.sleeps_overslept >= 2; }, in(5s));
  CHECK(duo.sleeps_overslept >= 2);
  expect_traffic(duo, duo.client, duo.server);
  CHECK(missed() == 0);
}

TEST_CASE("a lost completion event costs a tenth of a second, and is counted", "[verbs][events]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  duo.sleeping = true;
  Gain missed("verbs.missed_events");
  for (int i = 1; i <= 3; ++i) {
    auto lose = [&] { fabric.with_faults([](FakeFaults& f) { f.lose_cq_events = 1; }); };
    send_to_sleeper(duo, lose, [&] {
      CHECK_FALSE(readable(*duo.far));
      pollfd descriptor{duo.far->fd(), POLLIN, 0};
      auto left = std::chrono::ceil<std::chrono::milliseconds>(duo.far->next_timeout() - now());
      CHECK(left <= 100ms);
      CHECK(::poll(&descriptor, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) == 0);
    });
    CHECK(missed() == static_cast<uint64_t>(i));
    CHECK(fabric.with_faults([](FakeFaults& f) { return f.lose_cq_events; }) == 0);
  }
}

TEST_CASE("what came before the arming keeps its side awake", "[verbs][events]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  for (int i = 0; i < 5; ++i) {
    Tally& tally = duo.tally();
    tally.expect(duo.server.receive({.tag = 1}, test::room(*duo.far, 100), tally.options()),
                 OperationKind::kReceive, 1, 1);
    duo.settle();
    REQUIRE(duo.client.send(1, test::tensor(*duo.near, 100, 1)).ok());
    CHECK_FALSE(duo.far->prepare_to_sleep());
    CHECK(duo.until([&] { return tally.ended(); }, in(10s)));
    tally.check();
  }
}

TEST_CASE("who was away for long has missed no event that was waiting", "[verbs][events]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  Gain missed("verbs.missed_events");
  send_to_sleeper(
      duo, [] {},
      [&] {
        Instant until = in(150ms);
        while (now() < until) (void)duo.near->progress();
      });
  CHECK(missed() == 0);
}

TEST_CASE("nothing hangs when many events are lost, or come late", "[verbs][events]") {
  for (bool late : {false, true}) {
    Fabric fabric;
    Duo duo;
    REQUIRE(duo.open().ok());
    duo.sleeping = true;
    fabric.with_faults(
        [&](FakeFaults& f) { late ? f.late_cq_events = 500 : f.lose_cq_events = 12; });
    for (int i = 0; i < 3; ++i) expect_traffic(duo, duo.client, duo.server);
    fabric.with_faults([](FakeFaults& f) { f.late_cq_events = f.lose_cq_events = 0; });
  }
}

// The number of the QP that serves the client's end: in order of creation.
uint32_t number_of_first(Fabric& fabric) { return fabric->qp_numbers().front(); }

TEST_CASE("an event of one queue pair or completion queue fails that connection alone",
          "[verbs][events]") {
  for (ibv_event_type type : {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR}) {
    for (bool busy : {false, true}) {
      INFO(type << (busy ? " under traffic" : " in idle"));
      Fabric fabric;
      Duo duo;
      REQUIRE(duo.open().ok());
      Bystander bystander(duo);
      Traffic traffic(duo, duo.client, duo.server, 1s);
      if (busy) fabric->set_policy({.order = FakePolicy::Order::kSlow, .ticks = 50});
      if (busy) traffic.post(3'000'000);
      REQUIRE(fabric->raise_qp(type, number_of_first(fabric)));
      CHECK(duo.until([&] { return duo.both_closed(); }, in(10s)));
      traffic.finish();
      if (busy) CHECK(traffic.failures() > 0);
      auto refused = duo.server.receive({.tag = 1}, test::room(*duo.far, 1));
      CHECK(refused.code() == Code::kWrongState);
      expect_reconnect(duo);
    }
  }
}

TEST_CASE("events that concern nobody are taken and change nothing", "[verbs][events]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  for (ibv_event_type type :
       {IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED, IBV_EVENT_LID_CHANGE, IBV_EVENT_PKEY_CHANGE,
        IBV_EVENT_SM_CHANGE, IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_GID_CHANGE,
        IBV_EVENT_WQ_FATAL}) {
    INFO(type);
    fabric->raise_device(type);
    duo.settle();
    CHECK(duo.connected());
  }
  for (ibv_event_type type : {IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED, IBV_EVENT_PATH_MIG,
                              IBV_EVENT_PATH_MIG_ERR, IBV_EVENT_QP_LAST_WQE_REACHED}) {
    REQUIRE(fabric->raise_qp(type, number_of_first(fabric)));
  }
  duo.settle();
  expect_traffic(duo, duo.client, duo.server);
  CHECK(fabric->census().async_events == 0);
}

TEST_CASE("a completion queue's failure ends its own connection and no other", "[verbs][events]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  Bystander bystander(duo);
  REQUIRE(fabric->raise_cq_of(IBV_EVENT_CQ_ERR, number_of_first(fabric)));
  CHECK(duo.until([&] { return duo.both_closed(); }, in(10s)));
  expect_reconnect(duo);
}

TEST_CASE("a failed device ends its connections at once; a new one is made when it is back",
          "[verbs][events]") {
  for (bool removed : {false, true}) {
    for (bool busy : {false, true}) {
      INFO((removed ? "removed" : "failed") << (busy ? " under traffic" : " in idle"));
      Fabric fabric;
      Duo duo;
      REQUIRE(duo.open().ok());
      {
        Traffic traffic(duo, duo.client, duo.server, 2s);
        if (busy) fabric->set_policy({.order = FakePolicy::Order::kSlow, .ticks = 50});
        if (busy) traffic.post(3'000'000);
        removed ? fabric->remove_device() : fabric->raise_device(IBV_EVENT_DEVICE_FATAL);
        CHECK(duo.until([&] { return duo.both_closed(); }, in(10s)));
        traffic.finish();
        if (busy) CHECK(traffic.failures() > 0);
        for (const Tally* tally : {&traffic.client_tally, &traffic.server_tally}) {
          for (const auto& [id, each] : tally->all) {
            bool fits = each.status.ok() || each.status == Code::kUnreachable ||
                        each.status == Code::kOutcomeUnknown || each.status == Code::kInternal;
            INFO(each.status.to_string());
            CHECK(fits);
          }
        }
      }
      if (removed) {
        DuoOptions impatient;
        auto refused = duo.near->connect(duo.listener.address(), {.timeout = 300ms});
        CHECK_FALSE(refused.ok());
        CHECK_FALSE(refused.status().detail().empty());
        fabric->restore_device();
        // The listener's identifier was of the device that went.
        auto listening = duo.far->listen("rdma://127.0.0.1:0");
        REQUIRE(listening.ok());
        duo.listener = std::move(*listening);
      }
      expect_reconnect(duo);
    }
  }
}

TEST_CASE("one device's failure leaves the connections of another alone", "[verbs][events]") {
  FakeOptions two = two_devices();
  Fabric fabric(two);
  Duo duo;
  REQUIRE(duo.open().ok());
  auto listening = duo.far->listen("rdma://127.0.0.9:0");
  REQUIRE(listening.ok());
  Listener first = std::exchange(duo.listener, std::move(*listening));
  {
    Bystander bystander(duo);
    fabric->raise_device(IBV_EVENT_DEVICE_FATAL, 0);
    CHECK(duo.until([&] { return duo.both_closed(); }, in(10s)));
    duo.settle();
    CHECK(bystander.client.state() == EndpointState::kConnected);
  }
  expect_reconnect(duo);
}

TEST_CASE("a port that comes back in time loses nothing", "[verbs][events]") {
  FakeOptions options;
  options.retry_ticks = 100'000;
  Fabric fabric(options);
  Duo duo;
  REQUIRE(duo.open().ok());
  fabric->set_port(IBV_PORT_DOWN);
  duo.settle();
  CHECK(duo.connected());
  Traffic traffic(duo, duo.client, duo.server, 10s);
  traffic.post();
  duo.settle();
  fabric->set_port(IBV_PORT_ACTIVE);
  fabric->advance(200'000);
  traffic.finish();
  INFO(traffic.text());
  CHECK(traffic.failures() == 0);
  CHECK(duo.connected());
}

TEST_CASE("a port that stays down ends its connections, and a new one works when it is up",
          "[verbs][events]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  fabric->set_port(IBV_PORT_DOWN);
  {
    Traffic traffic(duo, duo.client, duo.server, 2s);
    traffic.post();
    traffic.finish();
    CHECK(traffic.failures() > 0);
    CHECK(traffic.text().find("unplugged, or its link is down") != std::string::npos);
  }
  CHECK(duo.until([&] { return duo.both_closed(); }, in(5s)));
  fabric->set_port(IBV_PORT_ACTIVE);
  duo.settle();
  expect_reconnect(duo);
}

TEST_CASE("each port has its own three seconds to come back", "[verbs][events]") {
  FakeOptions two = two_devices();
  two.retry_ticks = uint64_t{1} << 40;  // no answer is missed before
  Fabric fabric(two);
  Duo duo;
  REQUIRE(duo.open().ok());
  auto listening = duo.far->listen("rdma://127.0.0.9:0");
  REQUIRE(listening.ok());
  Listener first = std::exchange(duo.listener, std::move(*listening));
  auto made = duo.connect();
  REQUIRE(made.ok());
  auto [client, server] = std::move(made).value();
  fabric->set_port(IBV_PORT_DOWN, 0);
  (void)duo.until([] { return false; }, in(2500ms));
  fabric->set_port(IBV_PORT_DOWN, 1);
  CHECK(duo.until([&] { return duo.both_closed(); }, in(2s)));
  (void)duo.until([] { return false; }, in(300ms));
  CHECK(client.state() == EndpointState::kConnected);
  CHECK(server.state() == EndpointState::kConnected);
  fabric->set_port(IBV_PORT_ACTIVE, 1);
  for (Endpoint* end : {&client, &server})
    end->core().abort(Status(Code::kCancelled, Scope::kEndpoint, "test", "enough"));
}

TEST_CASE("a GID table that changes leaves connections alone and the next ones find it",
          "[verbs][events]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  fabric->set_gids({FakeGid{}, fake_link_local_gid(9, IBV_GID_TYPE_ROCE_V2),
                    fake_ipv4_gid("127.0.0.1", IBV_GID_TYPE_ROCE_V2)});
  duo.settle();
  expect_traffic(duo, duo.client, duo.server);
  expect_reconnect(duo);
}

// Why moderation is off: an event is asked for only before sleeping, and one is enough for
// all that comes until the sleeper looks.
TEST_CASE("an event is asked for once a sleep, however much completes", "[verbs][events]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  duo.sleeping = true;
  Gain events("verbs.completion_events");
  uint64_t asked = fabric->calls("req_notify_cq");
  Tally &sent = duo.tally(), &received = duo.tally();
  constexpr uint64_t kMessages = 256;
  for (Tag tag = 1; tag <= kMessages; ++tag) {
    received.expect(duo.server.receive({.tag = tag}, test::room(*duo.far, 100), received.options()),
                    OperationKind::kReceive, 1, tag);
  }
  for (Tag tag = 1; tag <= kMessages; ++tag)
    sent.expect(duo.client.send(tag, test::tensor(*duo.near, 100, tag), sent.options()),
                OperationKind::kSend);
  CHECK(duo.until([&] { return sent.ended() && received.ended(); }));
  sent.check();
  received.check();
  CHECK(events() <= fabric->calls("req_notify_cq") - asked);
  CHECK(events() < kMessages / 4);
  CHECK(fabric->moderations().empty());
}

// A completion may turn the context, and may open a window, which takes from the completion queue
// until that is done. The messages have one tag: each receive has the bytes of its own.
TEST_CASE("a completion that turns its context loses and overtakes nothing of its batch",
          "[verbs][events]") {
  for (bool grants : {false, true}) {
    INFO((grants ? "and grants memory" : "alone"));
    Fabric fabric;
    Duo duo;
    REQUIRE(duo.open().ok());
    duo.settle();
    Tally &sent = duo.tally(), &received = duo.tally();
    Buffer memory = test::room(*duo.far, 4096);
    bool inside = false;
    received.on_end = [&](const Completion&) {
      if (std::exchange(inside, true)) return;
      if (grants) CHECK(duo.server.grant(memory, {.rights = Right::kRead}).ok());
      for (int turn = 0; turn < 3; ++turn) (void)duo.far->progress();
    };
    constexpr uint64_t kMessages = 40;  // more than one batch, and less than the credits
    for (uint64_t i = 1; i <= kMessages; ++i) {
      received.expect(duo.server.receive({.tag = 1}, test::room(*duo.far, 100), received.options()),
                      OperationKind::kReceive, 1, i);
    }
    for (uint64_t i = 1; i <= kMessages; ++i) {
      sent.expect(duo.client.send(1, test::tensor(*duo.near, 100, i), sent.options()),
                  OperationKind::kSend);
    }
    CHECK(duo.until([&] { return sent.ended() && received.ended(); }, in(7s)));
    CHECK(inside);
    sent.check();
    received.check();
    INFO(received.text());
    CHECK(received.failures() == 0);
    CHECK(duo.connected());
    received.on_end = nullptr;
  }
}

// Its device stays open after the last connection, and so do its events.
TEST_CASE("a program that has left RDMA sleeps, whatever becomes of port and device",
          "[verbs][events]") {
  enum class Event { kPort, kFailed, kRemoved };
  for (Event event : {Event::kPort, Event::kFailed, Event::kRemoved}) {
    INFO(static_cast<int>(event));
    Fabric fabric;
    Duo duo;
    REQUIRE(duo.open().ok());
    CHECK(duo.client.close(soon()).ok());
    CHECK(duo.until([&] { return duo.both_closed(); }));
    duo.client = Endpoint();
    duo.server = Endpoint();
    duo.settle();
    REQUIRE(fabric->census().contexts == 2);
    if (event == Event::kPort) fabric->set_port(IBV_PORT_DOWN);
    if (event == Event::kFailed) fabric->raise_device(IBV_EVENT_DEVICE_FATAL);
    if (event == Event::kRemoved) fabric->remove_device();
    duo.settle();
    CHECK(duo.near->next_timeout() > now());
    CHECK(fabric->census().contexts == (event == Event::kPort ? 2 : 0));
    if (event == Event::kPort) fabric->set_port(IBV_PORT_ACTIVE);
    if (event == Event::kRemoved) continue;
    duo.settle();
    CHECK(duo.near->next_timeout() > now());
    expect_reconnect(duo);
  }
}

}  // namespace
}  // namespace sluice::verbs
