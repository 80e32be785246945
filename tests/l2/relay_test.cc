// Real frames through a relay that drops, repeats, holds back and damages them: messages,
// fetches, reads and writes arrive whole, and the counters say what was wrong with the rest.
// SLUICE_RELAY_SEED repeats a run.
#include <catch2/catch.hpp>

#include <cstdio>
#include <cstdlib>

#include "tests/l2/relay.h"
#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

uint64_t base_seed() {
  const char* text = std::getenv("SLUICE_RELAY_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 20'261'121;
}

// left = relay-left, the relay, relay-right = right
struct BadNetwork {
  explicit BadNetwork(int mtu = 1500) {
    // Without payload checksums damage between two Ethernets is not seen.
    ::setenv("SLUICE_L2_CHECKSUMS", "1", 1);
    REQUIRE(add_cable("left", 10, "relay-left", 11, mtu));
    REQUIRE(add_cable("relay-right", 12, "right", 13, mtu));
  }
  ~BadNetwork() {
    remove_cable("left");
    remove_cable("right");
  }
};

void everything(Two& two, size_t large) {
  for (size_t size : {size_t{1}, size_t{4096}, size_t{4097}, large}) two.exchange_messages(size);
  two.exchange_tensors(10'000);
  two.exchange_tensors(large);
}

constexpr const char* kDamage[] = {
    "l2.dropped_header_crc", "l2.dropped_payload_crc", "l2.dropped_length",
    "l2.dropped_flags",      "l2.dropped_type",        "l2.dropped_content",
    "l2.dropped_ack",        "l2.dropped_range",       "l2.dropped_number"};

void through(Harm harm, size_t large) {
  static uint64_t runs = 0;
  uint64_t seed = base_seed() + runs++;
  NothingLeftBehind audit;
  BadNetwork network;
  Relay relay("relay-left", "relay-right", seed);
  REQUIRE(relay.open());
  relay.set_harm(harm);
  INFO("SLUICE_RELAY_SEED=" << seed << ", in thousandths: drop " << harm.drop << ", repeat "
                            << harm.duplicate << ", hold " << harm.hold << ", damage "
                            << harm.corrupt);
  Grown grown;
  Instant begin = now();
  {
    Two two({.relay = &relay});
    everything(two, large);
    CHECK(two.client.state() == EndpointState::kConnected);
    CHECK(two.client.counters().posted == two.client.counters().completed);
  }
  std::fprintf(stderr, "%s; %.2f s\n", relay.story().c_str(),
               std::chrono::duration<double>(now() - begin).count());
  INFO(relay.story() << "\n" << grown.story("l2."));
  if (harm.drop > 0) CHECK(grown("l2.resent") > 0);
  if (harm.duplicate > 0) CHECK(grown("l2.dropped_repeated") > 0);
  if (harm.hold > 0) CHECK(relay.done().held > 0);
  uint64_t damaged = 0;
  for (const char* cause : kDamage) damaged += grown(cause);
  CHECK((damaged > 0) == (harm.corrupt > 0));
  if (harm.corrupt > 0) {
    CHECK(grown("l2.dropped_header_crc") > 0);
    CHECK(grown("l2.dropped_payload_crc") > 0);
  }
}

constexpr size_t kMiB = 1 << 20;

TEST_CASE("a relay that does no harm changes nothing", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  through({}, 4 * kMiB);
}

TEST_CASE("1 %, 5 % and 20 % of the frames dropped", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  for (uint32_t share : {10u, 50u, 200u}) through({.drop = share}, kMiB / 2);
}

TEST_CASE("1 %, 5 % and 20 % of the frames sent twice", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  for (uint32_t share : {10u, 50u, 200u}) through({.duplicate = share}, kMiB);
}

TEST_CASE("1 %, 5 % and 20 % of the frames held back behind others", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  for (uint32_t share : {10u, 50u, 200u}) through({.hold = share}, kMiB);
}

TEST_CASE("1 %, 5 % and 20 % of the frames damaged", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  for (uint32_t share : {10u, 50u, 200u}) through({.corrupt = share}, kMiB / 2);
}

TEST_CASE("1 %, 5 % and 20 % of each at once", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  for (uint32_t share : {10u, 50u, 200u})
    through({.drop = share, .duplicate = share, .hold = share, .corrupt = share}, kMiB / 4);
}

void without_large_frames(bool from_the_start) {
  NothingLeftBehind audit;
  BadNetwork network(9000);
  Relay relay("relay-left", "relay-right", base_seed());
  REQUIRE(relay.open());
  Grown grown;
  {
    Two two({.relay = &relay});
    if (!from_the_start) everything(two, 2 * kMiB);
    CHECK(relay.done().too_large == 0);
    relay.set_harm({.largest = 1600});
    everything(two, 2 * kMiB);
    CHECK(two.client.state() == EndpointState::kConnected);
  }
  INFO(relay.story() << "\n" << grown.story("l2."));
  CHECK(relay.done().too_large > 0);
  CHECK(grown("l2.frames_halved") >= 2);  // both ends find out
}

TEST_CASE("large frames that vanish between two large MTUs are given up for small ones", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  without_large_frames(true);
}

TEST_CASE("large frames that begin to vanish under traffic are given up for small ones", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  without_large_frames(false);
}

}  // namespace
}  // namespace sluice::test
