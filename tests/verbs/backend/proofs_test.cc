// What RDMA is for, proven: no CPU touches a payload on either side, nothing is registered
// after the start, a doorbell for each list of requests, windows closed when they should be.
#include <sys/mman.h>

#include "tests/verbs/backend/scene.h"

namespace sluice::verbs {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLarge = 512 * kPage;

// Memory that this process may not touch while it lives.
class Untouchable {
 public:
  explicit Untouchable(std::span<const std::byte> memory) {
    auto first = (reinterpret_cast<uintptr_t>(memory.data()) + kPage - 1) / kPage * kPage;
    auto last = (reinterpret_cast<uintptr_t>(memory.data()) + memory.size()) / kPage * kPage;
    REQUIRE(last > first);
    base_ = reinterpret_cast<void*>(first);
    size_ = last - first;
    REQUIRE(::mprotect(base_, size_, PROT_NONE) == 0);
  }
  ~Untouchable() { CHECK(::mprotect(base_, size_, PROT_READ | PROT_WRITE) == 0); }

 private:
  void* base_;
  size_t size_;
};

FakeOptions device_reaches_all() {
  FakeOptions options;
  options.ignores_protection = true;
  return options;
}

class Proof {
 public:
  Proof() : fabric(device_reaches_all()) {
    REQUIRE(duo.open().ok());
    near = &duo.tally();
    far = &duo.tally();
  }
  // Runs with both memories out of the program's reach; nobody copied anything.
  void run(std::span<const std::byte> one, std::span<const std::byte> other) {
    EndpointCounters before[] = {duo.client.counters(), duo.server.counters()};
    {
      Untouchable first(one), second(other);
      CHECK(duo.until([&] { return near->ended() && far->ended(); }, in(5s)));
    }
    INFO(near->text() << far->text());
    CHECK(near->failures() + far->failures() == 0);
    CHECK(duo.client.counters().copied_bytes == before[0].copied_bytes);
    CHECK(duo.server.counters().copied_bytes == before[1].copied_bytes);
    for (const Tally* tally : {near, far}) {
      for (const auto& [id, each] : tally->all) {
        CHECK(each.receipt.copied_bytes == 0);
        CHECK(each.receipt.kernel_copied_bytes == 0);
      }
    }
  }
  Fabric fabric;
  Duo duo;
  Tally *near, *far;
};

// The tensor that is in the room now.
bool arrived(const Tally&, std::span<const std::byte> room, uint64_t seed) {
  return test::holds(room, seed);
}

TEST_CASE("a large message is moved by the devices alone", "[verbs][proofs]") {
  Proof p;
  Tensor message = test::tensor(*p.duo.near, kLarge, 1);
  Buffer room = test::room(*p.duo.far, kLarge);
  auto from = message.bytes();
  std::span<const std::byte> to = room.bytes();
  p.far->expect(p.duo.server.receive({.tag = 1}, std::move(room), p.far->options()),
                OperationKind::kReceive, 1);
  p.near->expect(p.duo.client.send(1, message, p.near->options()), OperationKind::kSend);
  std::vector<Buffer> back;
  p.far->on_end = [&](const Completion& c) {
    back.emplace_back(std::move(const_cast<Completion&>(c).buffers[0]));
  };
  p.run(from, to);
  CHECK(arrived(*p.far, to, 1));
  p.far->on_end = nullptr;
}

TEST_CASE("one-sided reads and writes are moved by the devices alone", "[verbs][proofs]") {
  for (bool write : {false, true}) {
    Proof p;
    Buffer memory = test::filled(*p.duo.far, kLarge, 2);
    auto key = p.duo.server.grant(memory, {.rights = Right::kReadWrite});
    REQUIRE(key.ok());
    if (write) {
      Tensor source = test::tensor(*p.duo.near, kLarge, 3);
      auto from = source.bytes();
      p.near->expect(p.duo.client.write(*key, 0, source, p.near->options()), OperationKind::kWrite);
      p.run(from, memory.bytes());
      CHECK(test::holds(memory.bytes(), 3));
    } else {
      Buffer room = test::room(*p.duo.near, kLarge);
      std::span<const std::byte> to = room.bytes();
      std::vector<Buffer> back;
      p.near->on_end = [&](const Completion& c) {
        back.emplace_back(std::move(const_cast<Completion&>(c).buffers[0]));
      };
      p.near->expect(p.duo.client.read(*key, 0, std::move(room), p.near->options()),
                     OperationKind::kRead, 1);
      p.run(to, memory.bytes());
      CHECK(test::holds(to, 2));
      p.near->on_end = nullptr;
    }
    CHECK(p.duo.server.revoke(*key).ok());
  }
}

class Supplier final : public WantHandler {
 public:
  Supplier(Tensor value, Tally& tally) : value_(std::move(value)), tally_(tally) {}
  void on_want(EndpointCore& endpoint, const WantRequest& request) noexcept override {
    tally_.expect(endpoint.post_supply(request.token, value_, tally_.options()),
                  OperationKind::kSupply);
  }
  bool on_want_cancelled(EndpointCore&, uint64_t) noexcept override { return false; }
  void on_endpoint_closed(EndpointCore&, const Status&) noexcept override {}

 private:
  Tensor value_;
  Tally& tally_;
};

TEST_CASE("fetches are moved by the devices alone", "[verbs][proofs]") {
  for (bool into : {false, true}) {
    Proof p;
    Tensor value = test::tensor(*p.duo.far, kLarge, 4);
    Supplier supplier(value, *p.far);
    p.duo.server.core().set_want_handler(&supplier);
    Buffer room = test::room(*p.duo.near, kLarge);
    std::span<const std::byte> to = room.bytes();
    WantOptions want{.key_id = 0, .key = "k", .step = 1, .destination = {}};
    if (into) want.destination = std::move(room);
    std::vector<Buffer> back;
    p.near->on_end = [&](const Completion& c) {
      for (Buffer& buffer : const_cast<Completion&>(c).buffers)
        back.emplace_back(std::move(buffer));
    };
    p.near->expect(p.duo.client.core().post_want(want, p.near->options()), OperationKind::kWant,
                   into ? 1 : 0);
    // A fresh tensor is somewhere that is not known before: the source alone is taken away.
    p.run(value.bytes(), to);
    if (into) CHECK(test::holds(to, 4));
    p.near->on_end = nullptr;
    p.duo.server.core().set_want_handler(nullptr);
  }
}

TEST_CASE("nothing is registered after the start, and windows are not made anew",
          "[verbs][proofs]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  Gain narrow("verbs.narrow_registrations"), foreign("verbs.foreign_registrations");
  for (int i = 0; i < 3; ++i) expect_traffic(duo, duo.client, duo.server);
  uint64_t registered = fabric->calls("reg_mr"), windows = fabric->calls("alloc_mw");
  for (int i = 0; i < 30; ++i) expect_traffic(duo, duo.client, duo.server);
  CHECK(fabric->calls("reg_mr") == registered);
  CHECK(fabric->calls("alloc_mw") <= windows + 4);
  CHECK(narrow() == 0);
  CHECK(foreign() == 0);
}

TEST_CASE("on a device without windows each grant is one narrow registration, and goes with it",
          "[verbs][proofs]") {
  FakeOptions options;
  options.devices[0].windows = false;
  Fabric fabric(options);
  Duo duo;
  REQUIRE(duo.open().ok());
  expect_traffic(duo, duo.client, duo.server);
  duo.settle();
  uint64_t alive = fabric->census().mrs;
  Gain narrow("verbs.narrow_registrations");
  Buffer memory = test::room(*duo.far, 100'000);
  auto key = duo.server.grant(memory, {.rights = Right::kRead});
  REQUIRE(key.ok());
  CHECK(narrow() == 1);
  CHECK(fabric->census().mrs == alive + 1);
  CHECK(duo.server.revoke(*key).ok());
  CHECK(fabric->census().mrs == alive);
}

TEST_CASE("windows are closed when their operation is over, and a key is never valid again",
          "[verbs][proofs]") {
  Fabric fabric;
  Duo duo;
  REQUIRE(duo.open().ok());
  expect_traffic(duo, duo.client, duo.server);
  duo.settle();
  CHECK(fabric->census().bound_windows == 0);
  Buffer memory = test::filled(*duo.far, 4096, 9);
  std::vector<uint32_t> keys;
  for (int i = 0; i < 20; ++i) {
    auto key = duo.server.grant(memory, {.rights = Right::kReadWrite});
    REQUIRE(key.ok());
    CHECK(fabric->census().bound_windows == 1);
    CHECK(std::find(keys.begin(), keys.end(), key->device_key) == keys.end());
    keys.push_back(key->device_key);
    CHECK(duo.server.revoke(*key).ok());
    CHECK(fabric->census().bound_windows == 0);
  }
  // Cancelled and expired operations close theirs, too.
  for (bool expires : {false, true}) {
    Tally& tally = duo.tally();
    tally.limit = expires ? 1s : 5s;
    WantOptions want{.key_id = expires,
                     .key = expires ? "b" : "a",
                     .step = 1,
                     .destination = test::room(*duo.near, 100'000)};
    auto posted = duo.client.core().post_want(want, tally.options());
    tally.expect(posted, OperationKind::kWant, 1);
    tally.expect(duo.client.send(5, test::tensor(*duo.near, 100'000, 1), tally.options()),
                 OperationKind::kSend);
    duo.settle();
    CHECK(fabric->census().bound_windows == 2);
    if (!expires) {
      for (const auto& [id, each] : tally.all) CHECK(duo.client.cancel(id).ok());
    }
    CHECK(duo.until([&] { return tally.ended(); }, in(3s)));
    tally.check();
    CHECK(tally.count(expires ? Code::kTimedOut : Code::kCancelled) +
              tally.count(Code::kOutcomeUnknown) ==
          2);
    duo.settle();
    CHECK(fabric->census().bound_windows == 0);
  }
  expect_traffic(duo, duo.client, duo.server);
}

TEST_CASE("a grant ends with its deadline and its revocation, at the device", "[verbs][proofs]") {
  for (bool expires : {false, true}) {
    Fabric fabric;
    Duo duo;
    REQUIRE(duo.open().ok());
    Bystander bystander(duo);
    Buffer memory = test::filled(*duo.far, 4096, 9);
    auto key = duo.server.grant(
        memory, {.rights = Right::kReadWrite, .deadline = expires ? in(20ms) : kNever});
    REQUIRE(key.ok());
    expires ? (void)duo.until([] { return false; }, in(60ms)) : (void)duo.server.revoke(*key);
    CHECK(fabric->census().bound_windows == 0);
    Gain refused("verbs.peer_access_refused");
    Tally& tally = duo.tally();
    tally.expect(duo.client.write(*key, 0, test::tensor(*duo.near, 4096, 1), tally.options()),
                 OperationKind::kWrite);
    CHECK(duo.until([&] { return tally.ended(); }, in(3s)));
    CHECK(tally.count(Code::kAccessDenied) == 1);
    CHECK(test::holds(memory.bytes(), 9));
    CHECK(duo.until([&] { return duo.both_closed(); }, in(3s)));
    CHECK(refused() == 1);
  }
}

}  // namespace
}  // namespace sluice::verbs
