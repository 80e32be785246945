// Devices that are small, slow, lossy or without windows, and machines that let little
// memory be locked: the same traffic, or a clear no with the remedy.
#include "tests/verbs/backend/scene.h"

#include <errno.h>

#include <algorithm>
#include <tuple>

#include <sluice/api/connecting.h>

namespace sluice::verbs {
namespace {

FakeOptions one(const std::function<void(FakeDeviceOptions&)>& change) {
  FakeOptions options;
  change(options.devices[0]);
  return options;
}

void runs(const FakeOptions& options, int rounds = 3) {
  Fabric fabric(options);
  Duo duo;
  Status opened = duo.open();
  INFO(opened.to_string());
  REQUIRE(opened.ok());
  for (int i = 0; i < rounds; ++i) {
    Traffic traffic(duo, duo.client, duo.server, 15s);
    traffic.post(i == 0 ? 3'000'000 : 100'000);
    traffic.finish();
    INFO(traffic.text());
    CHECK(traffic.failures() == 0);
  }
  expect_reconnect(duo);
}

TEST_CASE("slow, reordering and lossy fabrics carry everything", "[verbs][limits]") {
  for (auto order :
       {FakePolicy::Order::kSlow, FakePolicy::Order::kReordering, FakePolicy::Order::kLossy}) {
    for (uint64_t seed : {1, 2, 3}) {
      INFO("order " << static_cast<int>(order) << " seed " << seed);
      FakeOptions options;
      options.policy = {.order = order, .ticks = 20, .loss_per_mille = 50, .seed = seed};
      options.retry_ticks = 4;
      runs(options, 2);
    }
  }
}

TEST_CASE("devices without windows, atomics, inline data or scatter lists carry everything",
          "[verbs][limits]") {
  runs(one([](FakeDeviceOptions& d) { d.windows = false; }));
  runs(one([](FakeDeviceOptions& d) { d.max_mw = 3; }));  // narrow registrations beside windows
  runs(one([](FakeDeviceOptions& d) { d.atomic_cap = IBV_ATOMIC_NONE; }));
  runs(one([](FakeDeviceOptions& d) { d.max_inline_data = 0; }));
  runs(one([](FakeDeviceOptions& d) { d.max_sge = 1; }));
  runs(one([](FakeDeviceOptions& d) { d.max_msg_sz = 64 << 10; }));
  runs(one([](FakeDeviceOptions& d) { d.max_qp_rd_atom = d.max_qp_init_rd_atom = 1; }));
  runs(one([](FakeDeviceOptions& d) { d.max_qp_wr = 128; }));
  runs(one([](FakeDeviceOptions& d) { d.moderation = false; }));
  runs(one([](FakeDeviceOptions& d) { d.on_demand_paging = true; }));
  runs(one([](FakeDeviceOptions& d) {
    d.windows = false, d.max_sge = 1, d.max_inline_data = 0, d.max_msg_sz = 64 << 10,
    d.max_qp_rd_atom = d.max_qp_init_rd_atom = 1, d.max_qp_wr = 128;
  }));
  FakeOptions few;
  few.poll_limit = 1;
  runs(few);
}

TEST_CASE("devices that are too small are refused with the numbers", "[verbs][limits]") {
  for (const auto& [options, text] : std::vector<std::pair<FakeOptions, std::string>>{
           {one([](FakeDeviceOptions& d) { d.max_qp_wr = 64; }), "128 are needed"},
           {one([](FakeDeviceOptions& d) { d.max_cqe = 100; }), "completion"},
           {one([](FakeDeviceOptions& d) { d.max_qp = 0; }), "queue pair"},
           {one([](FakeDeviceOptions& d) { d.max_pd = 0; }), "protection domain"},
       }) {
    INFO(text);
    Fabric fabric(options);
    DuoOptions impatient;
    impatient.connect.timeout = 1s;
    Duo duo(impatient);
    Status opened = duo.open();
    INFO(opened.to_string());
    CHECK_FALSE(opened.ok());
    CHECK(opened.to_string().find(text) != std::string::npos);
  }
}

TEST_CASE("without memory to lock a connection says what to do", "[verbs][limits]") {
  FakeOptions options;
  options.memlock_bytes = 64 << 10;
  Fabric fabric(options);
  Duo duo;
  Status opened = duo.open();
  INFO(opened.to_string());
  CHECK(opened.code() == Code::kNoMemory);
  bool remedy = opened.to_string().find("ulimit -l") != std::string::npos ||
                opened.to_string().find("SLUICE_ARENA_LIMIT") != std::string::npos;
  CHECK(remedy);
  CHECK(fabric->census().qps == 0);
}

TEST_CASE("where no memory may be locked, a device that pages on demand does without",
          "[verbs][limits]") {
  for (bool windows : {true, false}) {
    INFO("windows " << windows);
    FakeOptions options;
    options.memlock_bytes = 0;
    options.devices[0].on_demand_paging = true;
    options.devices[0].windows = windows;
    Fabric fabric(options);
    Gain on_demand("verbs.registered_on_demand");
    Duo duo;
    Status opened = duo.open();
    INFO(opened.to_string());
    REQUIRE(opened.ok());
    Traffic traffic(duo, duo.client, duo.server);
    traffic.post(3'000'000);
    traffic.finish();
    INFO(traffic.text());
    CHECK(traffic.failures() == 0);
    CHECK(fabric->census().pinned_bytes == 0);
    CHECK(on_demand() >= 4);  // an extent and the message slots, at each end
    expect_reconnect(duo);
  }
}

TEST_CASE("memory that may be locked is, also where the device pages on demand",
          "[verbs][limits]") {
  Fabric fabric(one([](FakeDeviceOptions& d) { d.on_demand_paging = true; }));
  Gain on_demand("verbs.registered_on_demand");
  Duo duo;
  REQUIRE(duo.open().ok());
  expect_traffic(duo, duo.client, duo.server);
  CHECK(fabric->census().pinned_bytes > 0);
  CHECK(on_demand() == 0);
}

TEST_CASE("memory that grows beyond the limit is refused, and connections live",
          "[verbs][limits]") {
  FakeOptions options;
  options.memlock_bytes = 24 << 20;
  Fabric fabric(options);
  Duo duo;
  REQUIRE(duo.open().ok());
  expect_traffic(duo, duo.client, duo.server);
  {
    std::vector<Buffer> held;
    Status refused;
    for (int i = 0; i < 64 && refused.ok(); ++i) {
      auto more = duo.near->allocate({4 << 20}, uint8);
      if (more.ok()) held.push_back(std::move(*more));
      refused = more.status();
    }
    INFO(refused.to_string());
    CHECK(refused.code() == Code::kNoMemory);
    bool remedy = refused.to_string().find("ulimit -l") != std::string::npos ||
                  refused.to_string().find("SLUICE_ARENA_LIMIT") != std::string::npos;
    CHECK(remedy);
    CHECK(duo.connected());
  }
  expect_traffic(duo, duo.client, duo.server);
}

// What a callback's grant() or revoke() finds while it waits for its window belongs to poll().
TEST_CASE("grants made and revoked inside callbacks keep messages in order", "[verbs][limits]") {
  for (auto [limit, policy, ticks] : std::vector<std::tuple<int, FakePolicy::Order, uint64_t>>{
           {0, FakePolicy::Order::kHonest, 0},
           {1, FakePolicy::Order::kHonest, 0},
           {3, FakePolicy::Order::kSlow, 1},
           {0, FakePolicy::Order::kReordering, 3},
           {2, FakePolicy::Order::kReordering, 7},
           {0, FakePolicy::Order::kSlow, 3}}) {
    INFO("limit " << limit << " order " << static_cast<int>(policy) << " ticks " << ticks);
    FakeOptions options;
    options.poll_limit = limit;
    options.policy = {.order = policy, .ticks = ticks};
    Fabric fabric(options);
    Duo duo;
    REQUIRE(duo.open().ok());
    Buffer memory = test::room(*duo.far, 4096);
    Tally &sent = duo.tally(), &received = duo.tally();
    std::vector<Tag> order;
    received.on_end = [&](const Completion& completion) {
      order.push_back(completion.tag);
      auto key = duo.server.grant(memory, {.rights = Right::kReadWrite});
      CHECK(key.ok());
      if (key.ok()) CHECK(duo.server.revoke(*key).ok());
    };
    for (Tag tag = 1; tag <= 200; ++tag) {
      received.expect(
          duo.server.receive({.tag = 0, .mask = 0}, test::room(*duo.far, 64), received.options()),
          OperationKind::kReceive, 1, tag);
    }
    for (Tag tag = 1; tag <= 200; ++tag) {
      sent.expect(duo.client.send(tag, test::tensor(*duo.near, 64, tag), sent.options()),
                  OperationKind::kSend);
    }
    CHECK(duo.until([&] { return sent.ended() && received.ended(); }, in(5s)));
    INFO(sent.text() << received.text());
    CHECK(sent.failures() + received.failures() == 0);
    sent.check();
    received.check();
    CHECK(std::is_sorted(order.begin(), order.end()));
    received.on_end = nullptr;
  }
}

// The last thing that a closing connection waits for may be a window that the device closes.
TEST_CASE("both ends close at once, whatever the fabric does", "[verbs][limits]") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    FakeOptions options;
    options.policy = {.order = FakePolicy::Order::kLossy, .loss_per_mille = 100, .seed = seed};
    Fabric fabric(options);
    Duo duo;
    REQUIRE(duo.open().ok());
    Traffic traffic(duo, duo.client, duo.server, 5s);
    traffic.post(200'000);
    for (uint64_t i = 0; i < seed % 5; ++i) (void)(duo.near->progress() + duo.far->progress());
    duo.client.core().start_close();
    duo.server.core().start_close();
    CHECK(duo.until([&] { return duo.both_closed(); }, in(10s)));
    traffic.finish();
  }
}

// Its device serves and starts more READs at once than ours: soft-RoCE 128, many a card 16.
class LargeDevice final : public FakeVerbs {
 public:
  bool asks = false, answers = false;
  int connect(rdma_cm_id* id, rdma_conn_param* p) override {
    if (asks) p->responder_resources = p->initiator_depth = 200;
    return FakeVerbs::connect(id, p);
  }
  int accept(rdma_cm_id* id, rdma_conn_param* p) override {
    if (answers) p->responder_resources = p->initiator_depth = 200;
    return FakeVerbs::accept(id, p);
  }
};

TEST_CASE("a peer whose device takes more READs at once gets as many as ours takes",
          "[verbs][limits]") {
  for (bool asks : {true, false}) {
    INFO((asks ? "it asks" : "it answers"));
    test::NothingLeftBehind audit;
    LargeDevice fabric;
    fabric.asks = asks;
    fabric.answers = !asks;
    use_verbs_api(&fabric);
    {
      Duo duo;
      Status opened = duo.open();
      INFO(opened.to_string());
      CHECK(opened.ok());
      if (opened.ok()) expect_traffic(duo, duo.client, duo.server);
    }
    use_verbs_api(nullptr);
    CHECK(fabric.complaints() == "");
  }
}

// It would keep the arena registered, and whatever the arena gets from now on.
TEST_CASE("an attempt that failed leaves no device open at the end that connects",
          "[verbs][limits]") {
  constexpr uint32_t kSoftRoce = 0xFFFFFF;  // drivers/infiniband/sw/rxe/rxe_param.h
  enum class Cause { kSilence, kCancelled, kRequirement, kRequirementOfSluice };
  for (Cause cause :
       {Cause::kSilence, Cause::kCancelled, Cause::kRequirement, Cause::kRequirementOfSluice}) {
    INFO(static_cast<int>(cause));
    Fabric fabric(one([](FakeDeviceOptions& d) { d.vendor_id = kSoftRoce; }));
    Duo duo;
    const bool silent = cause == Cause::kSilence || cause == Cause::kCancelled;
    ConnectOptions options{.timeout = 500ms};
    if (!silent) options.require = {.zero_copy = true, .rdma = true};
    auto listening = duo.far->listen(cause == Cause::kRequirementOfSluice ? "sluice://127.0.0.1:0"
                                                                          : "rdma://127.0.0.1:0");
    REQUIRE(listening.ok());
    if (silent) {
      fabric.with_faults(
          [](FakeFaults& f) { f.rewrite_message(1, [](auto& bytes) { bytes.resize(8); }); });
    }
    Connecting connecting = start_connect(*duo.near, listening->address(), options);
    CHECK(duo.until([&] {
      return connecting.ready() || (cause == Cause::kCancelled && fabric->census().contexts == 2);
    }));
    connecting.cancel();
    auto refused = connecting.take();
    INFO(refused.status().to_string());
    CHECK(refused.code() == (cause == Cause::kSilence     ? Code::kTimedOut
                             : cause == Cause::kCancelled ? Code::kCancelled
                                                          : Code::kUnsupported));
    CHECK(fabric->census().contexts == 1);  // the listener's
    duo.settle();
  }
}

TEST_CASE("where the peer's packets are smaller than ours, soft-RoCE's requests are, too",
          "[verbs][limits]") {
  constexpr uint32_t kSoftRoce = 0xFFFFFF;  // drivers/infiniband/sw/rxe/rxe_param.h
  constexpr size_t kMtuAt = 8;              // in the private data (connection.cc, PrivateData)
  Fabric fabric(one([](FakeDeviceOptions& d) {
    d.vendor_id = kSoftRoce;
    d.active_mtu = IBV_MTU_4096;
  }));
  Duo duo;
  fabric.with_faults([](FakeFaults& f) {
    for (uint64_t nth : {1, 2, 3, 4}) {
      f.change_cm_event(nth, [](rdma_cm_event& event) {
        const bool told = event.event == RDMA_CM_EVENT_CONNECT_REQUEST ||
                          event.event == RDMA_CM_EVENT_CONNECT_RESPONSE;
        if (!told) return;
        static_cast<uint8_t*>(const_cast<void*>(event.param.conn.private_data))[kMtuAt] =
            IBV_MTU_256;
      });
    }
  });
  REQUIRE(duo.open().ok());
  fabric.with_faults([](FakeFaults& f) { f.forget_plans(); });
  constexpr size_t kSize = 64 << 10;
  Buffer memory = test::filled(*duo.near, kSize, 5);
  auto key = duo.client.grant(memory, {.rights = Right::kRead});
  REQUIRE(key.ok());
  Gain transfers("verbs.transfers_posted");
  Tally& tally = duo.tally();
  tally.expect(duo.server.read(*key, 0, test::room(*duo.far, kSize), tally.options()),
               OperationKind::kRead, 1, 5);
  CHECK(duo.until([&] { return tally.ended(); }));
  tally.check();
  CHECK(tally.failures() == 0);
  CHECK(transfers() == kSize / (32 * 256));  // 32 packets each
}

}  // namespace
}  // namespace sluice::verbs
