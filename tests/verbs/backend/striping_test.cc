// A connection of several queue pairs on a fabric where they overtake each other: the bytes of
// large operations are spread over them, the peer hears of a write when all of it is there, one
// that breaks ends the connection, and no stranger adds one.
#include "tests/verbs/backend/scene.h"

#include <stdlib.h>
#include <string.h>

#include <sluice/base/log.h>
#include <sluice/verbs/connection.h>
#include <sluice/verbs/lanes.h>

namespace sluice::verbs {
namespace {

constexpr uint32_t kStripes = 4;
constexpr size_t kQueuePairs = 1 + 2 * (kStripes - 1);  // of one end
constexpr size_t kLarge = 1'500'000;
// Places in the private data of the connection manager (connection.cc, PrivateData).
constexpr size_t kStripesAt = 9, kLaneAt = 10, kTokenAt = 16;

class Striped {
 public:
  explicit Striped(const char* stripes = "4") {
    REQUIRE(::setenv("SLUICE_RDMA_QUEUE_PAIRS", stripes, 1) == 0);
  }
  ~Striped() { ::unsetenv("SLUICE_RDMA_QUEUE_PAIRS"); }
};

// Chunks of 64 KiB, so that there are many.
FakeOptions small_chunks() {
  FakeOptions options;
  options.devices[0].max_msg_sz = 64 << 10;
  return options;
}

struct Log {
  Log() {
    set_log_sink([](LogLevel, std::string_view line,
                    void* text) { static_cast<std::string*>(text)->append(line); },
                 &text);
  }
  ~Log() {
    set_log_sink([](LogLevel, std::string_view, void*) {}, nullptr);
  }
  std::string text;
};

TEST_CASE("large operations are spread over the queue pairs of their direction, small ones are not",
          "[verbs][striping]") {
  Striped striped;
  for (bool windows : {true, false}) {
    INFO((windows ? "windows" : "narrow registrations"));
    FakeOptions options = small_chunks();
    options.devices[0].windows = windows;
    Fabric fabric(options);
    Duo duo;
    REQUIRE(duo.open().ok());
    CHECK(fabric->qp_numbers().size() == 2 * kQueuePairs);
    Gain chunks("verbs.chunks_striped"), held("verbs.notices_held"),
        narrow("verbs.narrow_registrations");
    for (size_t size : {size_t{100'000}, kLarge}) {
      Traffic traffic(duo, duo.client, duo.server);
      traffic.post(size);
      traffic.finish();
      INFO(traffic.text());
      CHECK(traffic.failures() == 0);
    }
    // Messages, fetches, and fetches into a place, each both ways: 23 chunks of 1.5 MB, of
    // which a quarter stays on the first queue pair.
    CHECK(chunks() >= 6 * 15);
    CHECK(held() >= 2);
    if (windows) CHECK(narrow() <= 1);  // a grant that lies across extents
    uint64_t before = chunks();
    Traffic small(duo, duo.client, duo.server);
    small.post(60'000);
    small.finish();
    CHECK(small.failures() == 0);
    CHECK(chunks() == before);
    expect_reconnect(duo);
  }
}

TEST_CASE("without being asked for there is one queue pair", "[verbs][striping]") {
  Fabric fabric(small_chunks());
  Duo duo;
  REQUIRE(duo.open().ok());
  CHECK(fabric->qp_numbers().size() == 2);
}

TEST_CASE("whichever queue pair is last, the peer hears of a write when all of it is there",
          "[verbs][striping]") {
  Striped striped;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    INFO("seed " << seed);
    FakeOptions options = small_chunks();
    options.policy = {.order = FakePolicy::Order::kReordering, .ticks = 60, .seed = seed};
    Fabric fabric(options);
    Duo duo;
    REQUIRE(duo.open().ok());
    // Tally looks at the bytes in the completion itself.
    for (size_t size : {kLarge, size_t{130'000}, size_t{700'001}}) {
      Traffic traffic(duo, duo.client, duo.server, 15s);
      for (int i = 0; i < 2; ++i) traffic.post(size);
      traffic.finish();
      INFO(traffic.text());
      CHECK(traffic.failures() == 0);
    }
  }
}

TEST_CASE("while one queue pair lags behind, nobody is told that a fetch into its place is over",
          "[verbs][striping]") {
  Striped striped;
  size_t concerned = 0;
  for (size_t slow = 0; slow < 2 * kQueuePairs; ++slow) {
    INFO("queue pair " << slow);
    FakeOptions options = small_chunks();
    options.retry_ticks = 5000;  // none comes before the cut is healed
    Fabric fabric(options);
    Duo duo;
    REQUIRE(duo.open().ok());
    Gain missed("verbs.missed_events");
    Tally &near = duo.tally(), &far = duo.tally();
    Shelf& shelf = duo.shelf(*duo.far, far);
    shelf.size = kLarge;
    duo.server.core().set_want_handler(&shelf);
    WantOptions want{
        .key_id = 6, .key = "k", .step = 1, .destination = test::room(*duo.near, kLarge)};
    uint32_t number = fabric->qp_numbers()[slow];
    fabric.with_faults([&](FakeFaults& f) { f.cut_qps.insert(number); });
    near.expect(duo.client.core().post_want(want, near.options()), OperationKind::kWant, 1, 7);
    for (int i = 0; i < 100; ++i) (void)(duo.near->progress() + duo.far->progress());
    concerned += near.ended() ? 0 : 1;
    fabric.with_faults([](FakeFaults& f) { f.cut_qps.clear(); });
    duo.sleeping = true;
    CHECK(duo.until([&] { return near.ended() && far.ended(); }));
    near.check();
    far.check();
    CHECK(near.failures() + far.failures() == 0);
    CHECK(missed() == 0);
    duo.server.core().set_want_handler(nullptr);
  }
  // The first, and the server's three, by the numbers of either end.
  CHECK(concerned == 2 * kStripes);
}

TEST_CASE("slow and lossy fabrics carry everything over several queue pairs", "[verbs][striping]") {
  Striped striped;
  for (auto order : {FakePolicy::Order::kSlow, FakePolicy::Order::kLossy}) {
    FakeOptions options = small_chunks();
    options.policy = {.order = order, .ticks = 20, .loss_per_mille = 50, .seed = 3};
    options.retry_ticks = 4;
    options.poll_limit = order == FakePolicy::Order::kSlow ? 1 : 0;
    options.devices[0].max_sge = 1;
    options.devices[0].max_qp_wr = 128;
    Fabric fabric(options);
    Duo duo;
    REQUIRE(duo.open().ok());
    Traffic traffic(duo, duo.client, duo.server, 15s);
    traffic.post(kLarge);
    traffic.finish();
    INFO(traffic.text());
    CHECK(traffic.failures() == 0);
  }
}

TEST_CASE("whoever sleeps is woken by each of the queue pairs", "[verbs][striping]") {
  Striped striped;
  FakeOptions options = small_chunks();
  options.policy = {.order = FakePolicy::Order::kReordering, .ticks = 20, .seed = 1};
  Fabric fabric(options);
  Duo duo;
  duo.sleeping = true;
  REQUIRE(duo.open().ok());
  Gain missed("verbs.missed_events");
  for (int i = 0; i < 3; ++i) expect_traffic(duo, duo.client, duo.server);
  CHECK(missed() == 0);
}

TEST_CASE("a queue pair that breaks ends its connection and every operation on it",
          "[verbs][striping]") {
  Striped striped;
  for (size_t broken = 0; broken < kQueuePairs; ++broken) {
    INFO("queue pair " << broken);
    Fabric fabric(small_chunks());
    Duo duo;
    REQUIRE(duo.open().ok());
    {
      Bystander bystander(duo);
      uint32_t number = fabric->qp_numbers()[broken];
      fabric.with_faults([&](FakeFaults& f) { f.cut_qps.insert(number); });
      Traffic traffic(duo, duo.client, duo.server, 1s);
      traffic.post(kLarge);
      traffic.finish();
      CHECK(traffic.failures() > 0);
      CHECK(traffic.text().find("the peer's device does not answer") != std::string::npos);
    }
    CHECK(duo.until([&] { return duo.both_closed(); }, in(10s)));
  }
}

TEST_CASE("the device's word about a further queue pair ends that connection alone",
          "[verbs][striping]") {
  Striped striped;
  Fabric fabric(small_chunks());
  Duo duo;
  REQUIRE(duo.open().ok());
  {
    Bystander bystander(duo);
    REQUIRE(fabric->raise_qp(IBV_EVENT_QP_FATAL, fabric->qp_numbers()[2]));
    CHECK(duo.until([&] { return duo.both_closed(); }, in(10s)));
  }
}

// A connection over several queue pairs, and one more that is made while a peer changes its
// requests or answers; nobody waits long for what cannot come.
struct Greeting {
  Greeting() { REQUIRE(duo.open().ok()); }
  Status greet(rdma_cm_event_type type, const std::function<void(uint8_t* data)>& change) {
    fabric.with_faults([&](FakeFaults& f) {
      for (uint64_t nth = 1; nth <= 60; ++nth) {
        f.change_cm_event(nth, [&](rdma_cm_event& event) {
          if (event.event == type && event.param.conn.private_data != nullptr)
            change(static_cast<uint8_t*>(const_cast<void*>(event.param.conn.private_data)));
        });
      }
    });
    Status made = duo.connect().status();
    duo.settle();
    fabric.with_faults([](FakeFaults& f) { f.forget_plans(); });
    return made;
  }
  void expect_undisturbed() {
    expect_traffic(duo, duo.client, duo.server);
    expect_reconnect(duo);
  }

  Striped striped;
  Fabric fabric;
  Duo duo{{.connect = {.timeout = 1s}}};
};

TEST_CASE("a queue pair for no connection, for another's, of no number or twice is refused",
          "[verbs][striping]") {
  Greeting greeting;
  Log log;
  auto of_lane = [](uint8_t number, auto change) {
    return [=](uint8_t* data) {
      if (data[kLaneAt] == number) change(data);
    };
  };
  struct Lie {
    const char* what;
    std::function<void(uint8_t*)> change;
    const char* said;
  };
  const Lie lies[] = {
      {"token", of_lane(3, [](uint8_t* data) { data[kTokenAt + 7] ^= 1; }),
       "for no connection that waits for one"},
      {"no token", of_lane(1, [](uint8_t* data) { ::memset(data + kTokenAt, 0, 16); }),
       "for no connection that waits for one"},
      {"number beyond", of_lane(2, [](uint8_t* data) { data[kLaneAt] = 7; }),
       "asks for queue pair 7 of a connection that has 6"},
      {"number of no sense", of_lane(6, [](uint8_t* data) { data[kLaneAt] = 255; }),
       "asks for queue pair 255 of a connection that has 6"},
      {"number twice", of_lane(2, [](uint8_t* data) { data[kLaneAt] = 1; }),
       "asks for queue pair 1 of a connection"},
  };
  // Each with a listener of its own: one that refused somebody just now writes no second line.
  for (const Lie& lie : lies) {
    DYNAMIC_SECTION(lie.what) {
      Gain refused("verbs.lanes_refused");
      Status made = greeting.greet(RDMA_CM_EVENT_CONNECT_REQUEST, lie.change);
      INFO(made.to_string() << "; " << log.text);
      CHECK(made.code() == Code::kUnreachable);
      CHECK(made.to_string().find("of the connection: the peer refuses the connection") !=
            std::string::npos);
      CHECK(log.text.find(lie.said) != std::string::npos);
      CHECK(refused() == 1);
      greeting.expect_undisturbed();
    }
  }
  SECTION("more queue pairs than there may be") {
    Status too_many = greeting.greet(RDMA_CM_EVENT_CONNECT_REQUEST,
                                     [](uint8_t* data) { data[kStripesAt] = kMostStripes + 1; });
    CHECK(too_many.code() == Code::kUnreachable);
    CHECK(log.text.find("asks for 9 queue pairs each way, of 8 at most") != std::string::npos);
    greeting.expect_undisturbed();
  }
}

TEST_CASE("an answer that gives more than was asked for, or is another's, ends the attempt",
          "[verbs][striping]") {
  Greeting greeting;
  auto answer = [&](const std::function<void(uint8_t*)>& change) {
    return greeting.greet(RDMA_CM_EVENT_CONNECT_RESPONSE, change).to_string();
  };
  CHECK(answer([](uint8_t* data) {
          data[kStripesAt] = 5;
        }).find("gives 5 queue pairs each way, of 4 that were asked for") != std::string::npos);
  for (size_t at : {kLaneAt, kTokenAt}) {
    auto lie = [&](uint8_t* data) {
      if (data[kLaneAt] == 2) data[at] ^= 1;
    };
    CHECK(answer(lie).find("answers for another queue pair than it was asked for") !=
          std::string::npos);
  }
  greeting.expect_undisturbed();
}

TEST_CASE("who greets before its queue pairs have joined is refused", "[verbs][striping]") {
  Greeting greeting;
  Log log;
  // It believes that it was given one.
  CHECK_FALSE(
      greeting.greet(RDMA_CM_EVENT_CONNECT_RESPONSE, [](uint8_t* data) { data[kStripesAt] = 1; })
          .ok());
  CHECK(log.text.find("greets before all its queue pairs have joined") != std::string::npos);
  expect_reconnect(greeting.duo);
}

TEST_CASE("an end that knows of one queue pair only is met with one", "[verbs][striping]") {
  Striped striped;
  Fabric fabric;
  Duo duo;
  fabric.with_faults([&](FakeFaults& f) {
    for (uint64_t nth = 1; nth <= 6; ++nth) {
      f.change_cm_event(nth, [](rdma_cm_event& event) {
        if (event.event != RDMA_CM_EVENT_CONNECT_REQUEST) return;
        ::memset(
            static_cast<uint8_t*>(const_cast<void*>(event.param.conn.private_data)) + kStripesAt, 0,
            kTokenAt - kStripesAt);
        event.param.conn.private_data_len = kTokenAt;
      });
    }
  });
  REQUIRE(duo.open().ok());
  fabric.with_faults([](FakeFaults& f) { f.forget_plans(); });
  CHECK(fabric->qp_numbers().size() == 2);
  expect_traffic(duo, duo.client, duo.server);
}

TEST_CASE("a window on a queue pair that the connection does not have ends it",
          "[verbs][striping]") {
  Striped striped;
  Fabric fabric(small_chunks());
  Duo duo;
  REQUIRE(duo.open().ok());
  Gain refused("verbs.stripes_refused");
  Tally &near = duo.tally(), &far = duo.tally();
  Tensor message = test::tensor(*duo.near, kLarge, 1);
  auto address = reinterpret_cast<uint64_t>(message.bytes().data());
  fabric.with_faults([&](FakeFaults& f) {
    f.rewrite_message(1, [address](std::vector<uint8_t>& frame) {
      for (size_t at = 0; at + 8 <= frame.size(); ++at) {
        if (::memcmp(frame.data() + at, &address, 8) == 0) frame[at + 7] = 0x55;
      }
    });
  });
  near.limit = far.limit = 1s;
  far.expect(duo.server.receive({.tag = 1}, test::room(*duo.far, kLarge), far.options()),
             OperationKind::kReceive, 1);
  near.expect(duo.client.send(1, std::move(message), near.options()), OperationKind::kSend);
  CHECK(duo.until([&] { return near.ended() && far.ended(); }, in(3s)));
  CHECK(far.text().find("a window on queue pair 85 of a connection that has 4") !=
        std::string::npos);
  CHECK(refused() == 1);
  CHECK(duo.until([&] { return duo.both_closed(); }, in(10s)));
}

TEST_CASE("a number of queue pairs that cannot be meant is said and not used",
          "[verbs][striping]") {
  for (const char* text : {"", "0", "9", "four", "4x", "-1", "99999999999999999999"}) {
    INFO(text);
    Striped striped(text);
    Fabric fabric;
    Log log;
    CHECK(stripes_wanted() == 1);
    CHECK(log.text.find("cannot be '" + std::string(text) + "'; it can be 1 to 8") !=
          std::string::npos);
  }
  Striped striped("8");
  CHECK(stripes_wanted() == 8);
}

}  // namespace
}  // namespace sluice::verbs
