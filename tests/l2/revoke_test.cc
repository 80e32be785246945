// What revoke() promises, over frames, a bad network and UDP: when it has returned, nothing that
// is written to the memory afterwards reaches the peer, and nothing of the peer's reaches the
// memory; at whatever moment of a read or a write it is called. SLUICE_REVOKE_SEED repeats a run.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include <sluice/base/counters.h>

#include "tests/l2/relay.h"
#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

constexpr size_t kBytes = 256 << 10;
constexpr int kBefore = 0xaa, kAfter = 0xbb, kForeign = 0xcc;

uint64_t seed() {
  const char* text = std::getenv("SLUICE_REVOKE_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device{}();
}

size_t count(std::span<const std::byte> bytes, int value) {
  return static_cast<size_t>(std::count(bytes.begin(), bytes.end(), std::byte(value)));
}

struct Tally {
  int in_the_middle = 0, refused = 0, done = 0;
};

class Revoking {
 public:
  explicit Revoking(Two& two) : two_(two), seed_(seed()), random_(seed_) {}

  void reads(int rounds, Tally& tally) {
    for (int i = 0; i < rounds; ++i) {
      INFO("SLUICE_REVOKE_SEED=" << seed_ << ", read " << i);
      Buffer memory = of(*two_.far, kBefore);
      auto key = two_.server.grant(memory, {.rights = Right::kRead});
      REQUIRE(key.ok());
      Box box;
      Buffer into = of(*two_.near, 0);
      std::span<const std::byte> coming = into.bytes();
      REQUIRE(two_.client.read(*key, 0, std::move(into), {.sink = &box, .deadline = soon()}).ok());
      until_some_are_there(coming, kBefore, box);
      REQUIRE(two_.server.revoke(*key).ok());
      std::memset(memory.bytes().data(), kAfter, kBytes);
      REQUIRE(two_.until([&] { return !box.all.empty(); }));
      REQUIRE(box.all[0].buffers.size() == 1);
      std::span<const std::byte> got = box.all[0].buffers[0].bytes();
      REQUIRE(count(got, kAfter) == 0);
      note(box.all[0].status, count(got, kBefore), tally);
    }
  }
  void writes(int rounds, Tally& tally) {
    for (int i = 0; i < rounds; ++i) {
      INFO("SLUICE_REVOKE_SEED=" << seed_ << ", write " << i);
      Buffer memory = of(*two_.far, kBefore);
      auto key = two_.server.grant(memory, {.rights = Right::kReadWrite});
      REQUIRE(key.ok());
      Box box;
      REQUIRE(
          two_.client
              .write(*key, 0, of(*two_.near, kForeign).freeze(), {.sink = &box, .deadline = soon()})
              .ok());
      until_some_are_there(memory.bytes(), kForeign, box);
      REQUIRE(two_.server.revoke(*key).ok());
      size_t arrived = count(memory.bytes(), kForeign);
      std::memset(memory.bytes().data(), kAfter, kBytes);
      REQUIRE(two_.until([&] { return !box.all.empty(); }));
      // What is still on its way comes as well.
      for (int turn = 0; turn < 100; ++turn) (void)two_.near->progress();
      REQUIRE(count(memory.bytes(), kAfter) == kBytes);
      note(box.all[0].status, arrived, tally);
    }
  }

 private:
  static Buffer of(Context& context, int value) {
    Buffer buffer = context.allocate({kBytes}, uint8).value();
    std::memset(buffer.bytes().data(), value, kBytes);
    return buffer;
  }
  // A byte somewhere, and then a few turns of either end, or none.
  void until_some_are_there(std::span<const std::byte> memory, int value, const Box& box) {
    const std::byte& one = memory[random_() % kBytes];
    if (random_() % 8 != 0)
      (void)two_.until([&] { return one == std::byte(value) || !box.all.empty(); });
    for (uint64_t left = random_() % 4; left > 0; --left)
      (void)(random_() % 2 == 0 ? two_.near : two_.far)->progress();
  }
  static void note(const Status& status, size_t arrived, Tally& tally) {
    INFO(status.to_string());
    CHECK((status.ok() || status.code() == Code::kAccessDenied));
    ++(status.ok() ? tally.done : tally.refused);
    tally.in_the_middle += arrived > 0 && arrived < kBytes;
  }

  Two& two_;
  uint64_t seed_;
  std::mt19937_64 random_;
};

void revoke_often(const char* what, Two& two, int rounds) {
  Revoking revoking(two);
  Tally reads, writes;
  revoking.reads(rounds, reads);
  revoking.writes(rounds, writes);
  for (const Tally& tally : {reads, writes}) {
    std::printf("%s: %d in the middle, %d refused, %d done\n", what, tally.in_the_middle,
                tally.refused, tally.done);
    CHECK(tally.refused + tally.done == rounds);
    CHECK(tally.in_the_middle > rounds / 20);
  }
  two.exchange_messages(5000);
  CHECK(two.client.state() == EndpointState::kConnected);
}

TEST_CASE("after revoke() nothing crosses, over frames", "[l2][revoke]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  REQUIRE(add_cable("left", 10, "right", 11));
  {
    Two two;
    revoke_often("frames", two, 400);
    two.say_goodbye();
  }
  remove_cable("left");
}

TEST_CASE("after revoke() nothing crosses, also of what was lost and is sent again",
          "[l2][revoke]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  REQUIRE(add_cable("left", 10, "relay-left", 11));
  REQUIRE(add_cable("relay-right", 12, "right", 13));
  {
    Relay relay("relay-left", "relay-right", seed());
    REQUIRE(relay.open());
    Two two({.relay = &relay});
    relay.set_harm({.drop = 30, .duplicate = 20, .hold = 20});
    revoke_often("bad network", two, 100);
    CHECK(read_counter("l2.resent") > 0);
    relay.set_harm({});
    two.say_goodbye();
  }
  remove_cable("left");
  remove_cable("right");
}

TEST_CASE("after revoke() nothing crosses, over UDP", "[l2][revoke]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  REQUIRE(set_up("lo", true));
  {
    Two two({.listen_at = "l2://udp/127.0.0.1:0",
             .way = [](Context&, const std::string& listening) { return listening; }});
    revoke_often("udp", two, 400);
    two.say_goodbye();
  }
}

}  // namespace
}  // namespace sluice::test
