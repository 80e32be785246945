// What peers' devices may reach, counted at the device: the bytes of grants and of operations under
// way, and not one more; through windows nobody but the peer they were made for.
#include "tests/verbs/backend/scene.h"

namespace sluice::verbs {
namespace {

FakeOptions device(bool windows) {
  FakeOptions options;
  options.devices[0].windows = windows;
  return options;
}

// A read of `length` bytes with `key`, by a connection that may be ended by it.
Status read_by(Duo& duo, Endpoint& who, const RemoteKey& key, size_t length) {
  Tally& tally = duo.tally();
  tally.expect(who.read(key, 0, test::room(*duo.near, length), tally.options()),
               OperationKind::kRead, 1);
  if (!tally.refused.empty()) return tally.refused[0];
  CHECK(duo.until([&] { return tally.ended(); }));
  return tally.all[0].second.status;
}

TEST_CASE("between operations and without grants peers reach nothing", "[verbs][grants]") {
  for (bool windows : {true, false}) {
    Fabric fabric(device(windows));
    Duo duo;
    REQUIRE(duo.open().ok());
    Bystander bystander(duo);
    CHECK(fabric->census().open_bytes == 0);
    for (int i = 0; i < 3; ++i) {
      expect_traffic(duo, duo.client, duo.server);
      duo.settle();
      CHECK(fabric->census().open_regions == 0);
      CHECK(fabric->census().open_bytes == 0);
    }
  }
}

TEST_CASE(
    "a grant opens its own bytes: of the arena, across its extents, outside it, with windows and "
    "without",
    "[verbs][grants]") {
  std::vector<std::byte> outside(10'000);
  for (bool windows : {true, false}) {
    for (int scarce : {0, 1}) {
      FakeOptions options = device(windows);
      if (scarce > 0) options.devices[0].max_mw = 0;
      INFO("windows " << windows << ", none left " << scarce);
      Fabric fabric(options);
      Duo duo;
      REQUIRE(duo.open().ok());
      std::vector<Buffer> memories;
      memories.push_back(test::room(*duo.far, 1));
      memories.push_back(test::room(*duo.far, 4095));
      memories.push_back(test::room(*duo.far, 3 << 20));  // more than the first extent has
      memories.push_back(Buffer::wrap(outside.data() + 3, 5001, nullptr, nullptr).value());
      uint64_t open = 0;
      std::vector<RemoteKey> keys;
      for (Buffer& memory : memories) {
        for (Right rights : {Right::kRead, Right::kWrite}) {
          auto key = duo.server.grant(memory, {.rights = rights});
          INFO(key.status().to_string());
          REQUIRE(key.ok());
          open += memory.size_bytes();
          CHECK(fabric->census().open_bytes == open);
          keys.push_back(*key);
        }
      }
      bool narrow = !windows || scarce > 0;
      CHECK(fabric->census().open_regions ==
            (narrow ? keys.size() : 4));  // across extents, and outside
      for (const RemoteKey& key : keys) {
        CHECK(duo.server.revoke(key).ok());
        open -= key.length;
        CHECK(fabric->census().open_bytes == open);
      }
    }
  }
}

TEST_CASE("an offer and a request open what they are about", "[verbs][grants]") {
  for (bool windows : {true, false}) {
    Fabric fabric(device(windows));
    Duo duo;
    REQUIRE(duo.open().ok());
    Tally& tally = duo.tally();
    constexpr size_t kOffered = 123'457, kWanted = 54'321;
    tally.expect(duo.client.send(1, test::tensor(*duo.near, kOffered, 3), tally.options()),
                 OperationKind::kSend);
    duo.settle();
    CHECK(fabric->census().open_bytes == kOffered);
    WantOptions want{
        .key_id = 1, .key = "k", .step = 1, .destination = test::room(*duo.near, kWanted)};
    tally.expect(duo.client.core().post_want(want, tally.options()), OperationKind::kWant, 1);
    duo.settle();
    CHECK(fabric->census().open_bytes == kOffered + kWanted);
    for (const auto& [id, each] : tally.all) CHECK(duo.client.cancel(id).ok());
    CHECK(duo.until([&] { return tally.ended(); }));
    duo.settle();
    CHECK(fabric->census().open_bytes == 0);
  }
}

TEST_CASE("a key that another peer was given is worth nothing through a window",
          "[verbs][grants]") {
  Fabric fabric(device(true));
  Duo duo;
  REQUIRE(duo.open().ok());
  auto met = duo.connect();
  REQUIRE(met.ok());
  auto& [other, its_far_end] = *met;
  Buffer memory = test::filled(*duo.far, 4096, 9);
  auto key = duo.server.grant(memory, {.rights = Right::kReadWrite});
  REQUIRE(key.ok());
  CHECK(read_by(duo, other, *key, 4096).code() == Code::kAccessDenied);
  CHECK(duo.until([&] { return other.state() == EndpointState::kClosed; }));
  CHECK(read_by(duo, duo.client, *key, 4096).ok());
}

// Named in SECURITY.md: without windows the key is all there is, and it is good for every
// connection to the device.
TEST_CASE("a key of a narrow region opens that region alone, to whoever has it",
          "[verbs][grants]") {
  Fabric fabric(device(false));
  Duo duo;
  REQUIRE(duo.open().ok());
  auto met = duo.connect();
  REQUIRE(met.ok());
  auto& [other, its_far_end] = *met;
  Buffer memory = test::filled(*duo.far, 4096, 9);
  auto key = duo.server.grant(memory, {.rights = Right::kRead});
  REQUIRE(key.ok());
  CHECK(read_by(duo, other, *key, 4096).ok());
  RemoteKey wider = *key;
  wider.length = 4097;
  CHECK(read_by(duo, other, wider, 4097).code() == Code::kAccessDenied);
  RemoteKey before = *key;
  before.address -= 1;
  CHECK(read_by(duo, duo.client, before, 16).code() == Code::kAccessDenied);
}

TEST_CASE("keys and addresses near a grant's open nothing", "[verbs][grants]") {
  Fabric fabric(device(true));
  Duo duo;
  REQUIRE(duo.open().ok());
  Buffer memory = test::filled(*duo.far, 8192, 9);
  Tensor held = test::tensor(*duo.far, 4096, 1);  // of the same extent, granted to nobody
  size_t guesses = 0;
  auto guess = [&](const std::function<void(RemoteKey&)>& change) {
    auto met = duo.connect();
    REQUIRE(met.ok());
    auto key = met->second.grant(memory, {.rights = Right::kRead});
    REQUIRE(key.ok());
    change(*key);
    CHECK(read_by(duo, met->first, *key, 64).code() == Code::kAccessDenied);
    CHECK(duo.until([&] {
      return met->first.state() == EndpointState::kClosed &&
             met->second.state() == EndpointState::kClosed;
    }));
    ++guesses;
  };
  for (uint32_t step : {1u, 2u, 255u, 256u, 257u, 512u, 65536u, 0x80000000u}) {
    guess([&](RemoteKey& key) { key.device_key += step; });
    guess([&](RemoteKey& key) { key.device_key -= step; });
  }
  guess([&](RemoteKey& key) { key.address = reinterpret_cast<uint64_t>(held.bytes().data()); });
  guess([&](RemoteKey& key) { key.address += 8192 - 63; });
  guess([&](RemoteKey& key) { key.address -= 1; });
  CHECK(guesses == 19);
  expect_traffic(duo, duo.client, duo.server);
}

// Until then the device may open the window yet, and nobody would ever close it.
TEST_CASE("a grant whose window the device does not open in time ends its connection",
          "[verbs][grants]") {
  using Held = FakeFaults::Held;
  for (Held held : {Held::kUndone, Held::kUnsaid}) {
    Fabric fabric(device(true));
    Duo duo;
    REQUIRE(duo.open().ok());
    Bystander bystander(duo);
    Buffer memory = test::filled(*duo.far, 4096, 9);
    fabric.with_faults(
        [&](FakeFaults& f) { f.hold(1, held, FakeFaults::kForEver, IBV_WR_BIND_MW); });
    auto key = duo.server.grant(memory, {.rights = Right::kReadWrite});
    INFO(key.status().to_string());
    CHECK(key.code() == Code::kTimedOut);
    CHECK(duo.until([&] { return duo.both_closed(); }, in(3s)));
    CHECK(fabric->census().bound_windows == 0);
    expect_traffic(duo, bystander.client, bystander.server);
  }
}

}  // namespace
}  // namespace sluice::verbs
