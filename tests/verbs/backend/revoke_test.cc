// When revoke() has returned, the peer's device reaches the memory no more: what is written there
// afterwards it never reads, and nothing that it writes arrives. On devices with windows and on
// those without, whatever the device holds back, loses or refuses meanwhile.
#include "tests/verbs/backend/scene.h"

#include <errno.h>

#include <algorithm>

namespace sluice::verbs {
namespace {

using Held = FakeFaults::Held;

constexpr size_t kSize = 300'000;
// Much longer than whatever a case needs beside it.
constexpr uint64_t kLong = 500;
constexpr std::byte kSecret{0xA7};

FakeOptions device(bool windows) {
  FakeOptions options;
  options.devices[0].windows = windows;
  options.devices[0].max_msg_sz = 16 << 10;  // many chunks
  return options;
}

// A grant of the server, and the client's reads of all of it and writes to its first half.
class Revoked {
 public:
  explicit Revoked(Duo& duo)
      : duo_(duo), tally_(duo.tally()), memory_(test::room(*duo.far, kSize)) {
    tally_.bytes_may_lie = true;
    std::fill(memory_.bytes().begin(), memory_.bytes().end(), std::byte{1});
    auto granted = duo.server.grant(memory_, {.rights = Right::kReadWrite});
    REQUIRE(granted.ok());
    key_ = *granted;
    tally_.on_end = [this](const Completion& completion) {
      for (const Buffer& buffer : completion.buffers) {
        secrets_ +=
            static_cast<size_t>(std::count(buffer.bytes().begin(), buffer.bytes().end(), kSecret));
      }
    };
  }
  ~Revoked() { tally_.on_end = nullptr; }

  void reach() {
    Buffer room = test::room(*duo_.near, kSize);
    std::fill(room.bytes().begin(), room.bytes().end(), std::byte{0});
    tally_.expect(duo_.client.read(key_, 0, std::move(room), tally_.options()),
                  OperationKind::kRead, 1);
    Buffer source = test::room(*duo_.near, kSize / 2);
    std::fill(source.bytes().begin(), source.bytes().end(), std::byte{3});
    tally_.expect(duo_.client.write(key_, 0, std::move(source).freeze(), tally_.options()),
                  OperationKind::kWrite);
    (void)duo_.near->progress();
  }
  Status revoke() {
    Status revoked = duo_.server.revoke(key_);
    std::fill(memory_.bytes().begin(), memory_.bytes().end(), kSecret);
    return revoked;
  }
  // After revoke(): whatever was under way and what comes now reach nothing.
  void expect_fenced() {
    reach();
    CHECK(duo_.until([&] { return tally_.ended(); }));
    INFO(tally_.text());
    CHECK(secrets_ == 0);
    auto bytes = memory_.bytes();
    CHECK(static_cast<size_t>(std::count(bytes.begin(), bytes.end(), kSecret)) == bytes.size());
  }
  const RemoteKey& key() const { return key_; }

 private:
  Duo& duo_;
  Tally& tally_;
  Buffer memory_;
  RemoteKey key_;
  size_t secrets_ = 0;
};

TEST_CASE("revoke waits until the device has closed the window, while the peer reads and writes",
          "[verbs][revoke]") {
  for (FakePolicy::Order order : {FakePolicy::Order::kHonest, FakePolicy::Order::kSlow,
                                  FakePolicy::Order::kReordering, FakePolicy::Order::kLossy}) {
    FakeOptions options = device(true);
    options.policy.order = order;
    INFO("order " << static_cast<int>(order));
    Fabric fabric(options);
    Duo duo;
    REQUIRE(duo.open().ok());
    Revoked grant(duo);
    grant.reach();
    fabric.with_faults([](FakeFaults& f) { f.hold(1, Held::kUndone, kLong, IBV_WR_LOCAL_INV); });
    uint64_t polls = fabric->calls("poll_cq");
    CHECK(grant.revoke().ok());
    CHECK(fabric->census().bound_windows == 0);
    CHECK(fabric->calls("poll_cq") - polls >= kLong);
    grant.expect_fenced();
  }
}

TEST_CASE("revoke takes the device's word for it, not its own request's place in the queue",
          "[verbs][revoke]") {
  Fabric fabric(device(true));
  Duo duo;
  REQUIRE(duo.open().ok());
  Revoked grant(duo);
  fabric.with_faults([](FakeFaults& f) { f.hold(1, Held::kUnsaid, kLong, IBV_WR_LOCAL_INV); });
  uint64_t polls = fabric->calls("poll_cq");
  CHECK(grant.revoke().ok());
  CHECK(fabric->calls("poll_cq") - polls >= kLong);
  grant.expect_fenced();
}

TEST_CASE("an older request's completion does not end the wait of a revoke", "[verbs][revoke]") {
  Fabric fabric(device(true));
  Duo duo;
  REQUIRE(duo.open().ok());
  Revoked grant(duo);
  // A request of the server's own, done and not yet said so, lies before the window's end, and
  // messages of the client come between.
  Buffer other = test::room(*duo.near, 1000);
  auto back = duo.client.grant(other, {.rights = Right::kReadWrite});
  REQUIRE(back.ok());
  Tally& server = duo.tally();
  fabric.with_faults([](FakeFaults& f) {
    f.hold(1, Held::kUnsaid, kLong / 2, IBV_WR_RDMA_WRITE);
    f.hold(1, Held::kUndone, kLong, IBV_WR_LOCAL_INV);
  });
  server.expect(duo.server.write(*back, 0, test::tensor(*duo.far, 1000, 5), server.options()),
                OperationKind::kWrite);
  (void)duo.far->progress();
  Tally& client = duo.tally();
  client.expect(duo.client.send(1, test::tensor(*duo.near, 100, 2), client.options()),
                OperationKind::kSend);
  (void)duo.near->progress();
  CHECK(grant.revoke().ok());
  CHECK(fabric->census().bound_windows == 1);  // the client's own grant
  grant.expect_fenced();
  CHECK(server.ended());
  CHECK(server.failures() == 0);
}

TEST_CASE(
    "a window that the device does not close ends the connection, within the bound that is stated",
    "[verbs][revoke]") {
  for (Held held : {Held::kUndone, Held::kUnsaid}) {
    Fabric fabric(device(true));
    Duo duo;
    REQUIRE(duo.open().ok());
    Bystander bystander(duo);
    Revoked grant(duo);
    grant.reach();
    fabric.with_faults(
        [&](FakeFaults& f) { f.hold(1, held, FakeFaults::kForEver, IBV_WR_LOCAL_INV); });
    CHECK(grant.revoke().ok());
    CHECK(fabric->census().bound_windows == 0);
    CHECK(duo.server.state() != EndpointState::kConnected);
    grant.expect_fenced();
    CHECK(duo.until([&] { return duo.both_closed(); }));
    expect_traffic(duo, bystander.client, bystander.server);
  }
}

TEST_CASE("a revoke that the device refuses ends the connection, and with it the access",
          "[verbs][revoke]") {
  for (bool posted : {true, false}) {
    Fabric fabric(device(true));
    Duo duo;
    REQUIRE(duo.open().ok());
    Revoked grant(duo);
    grant.reach();
    duo.settle();
    fabric.with_faults([&](FakeFaults& f) {
      if (posted) f.complete(1, IBV_WC_LOC_QP_OP_ERR, IBV_WR_LOCAL_INV, false);
      if (!posted) f.refuse_request(1, ENOMEM);
    });
    CHECK(grant.revoke().ok());
    CHECK(fabric->census().bound_windows == 0);
    CHECK(duo.server.state() != EndpointState::kConnected);
    grant.expect_fenced();
  }
}

TEST_CASE("without windows the narrow region is gone when revoke returns", "[verbs][revoke]") {
  for (FakePolicy::Order order : {FakePolicy::Order::kHonest, FakePolicy::Order::kSlow,
                                  FakePolicy::Order::kReordering, FakePolicy::Order::kLossy}) {
    FakeOptions options = device(false);
    options.policy.order = order;
    INFO("order " << static_cast<int>(order));
    Fabric fabric(options);
    Duo duo;
    REQUIRE(duo.open().ok());
    Revoked grant(duo);
    grant.reach();
    uint64_t alive = fabric->census().mrs;
    CHECK(grant.revoke().ok());
    CHECK(fabric->census().mrs == alive - 1);
    grant.expect_fenced();
  }
}

// The key of a narrow region is good on every connection of the device: the end of one does not end
// the access.
TEST_CASE(
    "memory of a narrow region that the device keeps is nobody else's until the device is closed",
    "[verbs][revoke]") {
  for (bool refuses : {false, true}) {
    Fabric fabric(device(false));
    Gain quarantined("verbs.memory_quarantined"), kept("verbs.regions_kept");
    Duo duo;
    REQUIRE(duo.open().ok());
    Bystander bystander(duo);
    {
      Revoked grant(duo);
      grant.reach();
      duo.settle();
      fabric.with_faults([&](FakeFaults& f) {
        if (refuses) f.fail("dereg_mr", 1, EBUSY);
      });
      CHECK(grant.revoke().ok());
      CHECK((duo.server.state() == EndpointState::kConnected) == !refuses);
      if (!refuses) grant.expect_fenced();
      CHECK(duo.until([&] { return !refuses || duo.both_closed(); }));
    }
    CHECK((quarantined() >= kSize) == refuses);
    CHECK(kept() == (refuses ? 1 : 0));
    expect_traffic(duo, bystander.client, bystander.server);
  }
}

}  // namespace
}  // namespace sluice::verbs
