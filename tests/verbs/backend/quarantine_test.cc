// A device that refuses to end a queue pair with requests out: the operations end as always,
// and the memory that it may still reach is nobody else's until the device is closed.
#include "tests/verbs/backend/scene.h"

#include <errno.h>

namespace sluice::verbs {
namespace {

constexpr size_t kSize = 300'000;

// Every byte of the arena that can be had, and whether one of them is in [data, data + kSize).
bool handed_out_again(Context& context, const std::byte* data) {
  std::vector<Buffer> all;
  bool met = false;
  for (int i = 0; i < 4000; ++i) {
    auto made = context.allocate({static_cast<int64_t>(kSize / 4)}, uint8);
    if (!made.ok()) break;
    met = met || (made->data() < data + kSize && data < made->data() + kSize / 4);
    all.push_back(std::move(*made));
  }
  return met;
}

DuoOptions small() {
  DuoOptions options;
  options.arena.limit_bytes = 24 << 20;
  return options;
}

// Traffic does not pass any more, requests stay out, and the queue pair with them; until the end of
// the case.
class Stuck {
 public:
  Stuck(Fabric& fabric, bool stuck) : fabric_(fabric) {
    fabric.with_faults([=](FakeFaults& f) {
      f.link = FakeFaults::Link::kCut;
      f.never_flush = true;
      if (stuck) f.fail("destroy_qp", 1, EBUSY, 1'000'000);
    });
  }
  ~Stuck() {
    fabric_.with_faults([](FakeFaults& f) {
      f.forget_plans();
      f.never_flush = false;
      f.link = FakeFaults::Link::kUp;
    });
  }

 private:
  Fabric& fabric_;
};

// What `post` puts under way at the client ends with the connection, its buffer is dropped.
void expect_quarantine(
    bool stuck, bool by_device,
    const std::function<const std::byte*(Duo&, const RemoteKey&, Tally&)>& post) {
  INFO("stuck " << stuck << " by device " << by_device);
  Fabric fabric;
  Gain quarantined("verbs.memory_quarantined");
  Duo duo(small());
  REQUIRE(duo.open().ok());
  expect_traffic(duo, duo.client, duo.server);
  duo.settle();
  Buffer memory = test::filled(*duo.far, kSize, 7);
  auto key = duo.server.grant(memory, {.rights = Right::kReadWrite});
  REQUIRE(key.ok());
  {
    Stuck fault(fabric, stuck);
    Tally& tally = duo.tally();
    const std::byte* data = post(duo, *key, tally);
    (void)duo.near->progress();
    if (by_device) {
      REQUIRE(fabric->raise_qp(IBV_EVENT_QP_FATAL, fabric->qp_numbers().front()));
      REQUIRE(fabric->raise_qp(IBV_EVENT_QP_FATAL, fabric->qp_numbers().back()));
    } else {
      duo.client.core().abort(Status(Code::kCancelled, Scope::kEndpoint, "test", "enough"));
      duo.server.core().abort(Status(Code::kCancelled, Scope::kEndpoint, "test", "enough"));
    }
    CHECK(duo.until([&] { return tally.ended() && duo.both_closed(); }));
    tally.check();
    CHECK(tally.failures() == 1);
    CHECK(handed_out_again(*duo.near, data) == !stuck);
    CHECK((quarantined() >= kSize) == stuck);
    // The target's, which was open to the peer.
    const std::byte* granted = memory.data();
    memory = Buffer();
    CHECK(handed_out_again(*duo.far, granted) == !stuck);
  }
  duo.close();  // all memory is back, with the devices
}

TEST_CASE("where a read was to go, nothing else is put while the device may write there",
          "[verbs][quarantine]") {
  for (bool stuck : {true, false}) {
    for (bool by_device : {true, false}) {
      expect_quarantine(stuck, by_device, [](Duo& duo, const RemoteKey& key, Tally& tally) {
        Buffer room = test::room(*duo.near, kSize);
        const std::byte* data = room.data();
        tally.expect(duo.client.read(key, 0, std::move(room), tally.options()),
                     OperationKind::kRead, 1);
        return data;
      });
    }
  }
}

TEST_CASE("what was being written is not changed while the device may send it",
          "[verbs][quarantine]") {
  for (bool stuck : {true, false}) {
    expect_quarantine(stuck, true, [](Duo& duo, const RemoteKey& key, Tally& tally) {
      Tensor source = test::tensor(*duo.near, kSize, 1);
      const std::byte* data = source.bytes().data();
      tally.expect(duo.client.write(key, 0, std::move(source), tally.options()),
                   OperationKind::kWrite);
      return data;
    });
  }
}

TEST_CASE("where a fetch was to arrive, nothing else is put while the peer may write there",
          "[verbs][quarantine]") {
  for (bool stuck : {true, false}) {
    expect_quarantine(stuck, false, [](Duo& duo, const RemoteKey&, Tally& tally) {
      WantOptions want{
          .key_id = 50, .key = "key", .step = 1, .destination = test::room(*duo.near, kSize)};
      const std::byte* data = want.destination.data();
      tally.expect(duo.client.core().post_want(want, tally.options()), OperationKind::kWant, 1);
      return data;
    });
  }
}

TEST_CASE("a failed chunk of a stuck queue pair does not let go of the other chunks' memory",
          "[verbs][quarantine]") {
  FakeOptions options;
  options.devices[0].max_msg_sz = 64 << 10;
  Fabric fabric(options);
  Gain quarantined("verbs.memory_quarantined");
  Duo duo(small());
  REQUIRE(duo.open().ok());
  Buffer memory = test::filled(*duo.far, kSize, 7);
  auto key = duo.server.grant(memory, {.rights = Right::kRead});
  REQUIRE(key.ok());
  {
    Stuck fault(fabric, true);
    fabric.with_faults([](FakeFaults& f) {
      f.link = FakeFaults::Link::kUp;
      f.complete(2, IBV_WC_REM_OP_ERR, IBV_WR_RDMA_READ);
    });
    Tally& tally = duo.tally();
    Buffer room = test::room(*duo.near, kSize);
    const std::byte* data = room.data();
    tally.expect(duo.client.read(*key, 0, std::move(room), tally.options()), OperationKind::kRead,
                 1);
    CHECK(duo.until([&] { return tally.ended(); }));
    tally.check();
    CHECK(tally.failures() == 1);
    CHECK(quarantined() >= kSize);
    CHECK_FALSE(handed_out_again(*duo.near, data));
  }
  memory = Buffer();
  duo.close();
}

TEST_CASE("other connections of the device go on beside a stuck one", "[verbs][quarantine]") {
  Fabric fabric;
  Gain stuck("verbs.queue_pairs_stuck");
  Duo duo(small());
  REQUIRE(duo.open().ok());
  Bystander bystander(duo);
  Buffer memory = test::filled(*duo.far, kSize, 7);
  auto key = duo.server.grant(memory, {.rights = Right::kRead});
  REQUIRE(key.ok());
  fabric.with_faults([&](FakeFaults& f) {
    f.fail("destroy_qp", 1, EBUSY);
    f.never_flush = true;
    f.link = FakeFaults::Link::kCut;
  });
  Tally& tally = duo.tally();
  tally.expect(duo.client.read(*key, 0, test::room(*duo.near, kSize), tally.options()),
               OperationKind::kRead, 1);
  (void)duo.near->progress();
  duo.client.core().abort(Status(Code::kCancelled, Scope::kEndpoint, "test", "enough"));
  CHECK(duo.until([&] { return tally.ended() && duo.client.state() == EndpointState::kClosed; }));
  CHECK(stuck() == 1);
  fabric.with_faults([](FakeFaults& f) {
    f.never_flush = false;
    f.link = FakeFaults::Link::kUp;
  });
  for (int i = 0; i < 3; ++i) expect_traffic(duo, bystander.client, bystander.server);
  expect_reconnect(duo);
}

}  // namespace
}  // namespace sluice::verbs
