// Packet numbers: taken once, acknowledged in time, and believed only if they can be.
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/slp/table.h"

namespace sluice::slp::table {

TEST_CASE("a frame is taken once, in whatever order, up to 2048 numbers late", "[slp]") {
  Pair pair;
  Frame late = next_frame(pair, "late");
  // The same content in a younger frame, many numbers on.
  pair.run(pair.now + 10 * kMillisecond);
  CHECK(pair.server.messages == std::vector<std::string>{"late"});
  for (int i = 0; i < 1500; ++i) {
    REQUIRE(pair.client.send("x"));
    pair.run();
  }
  pair.now += kMillisecond;
  CHECK(pair.server.hear(late, pair.now) == SLP_TAKEN);
  CHECK(pair.server.hear(late, pair.now) == SLP_DROP_REPEATED);
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(pair.client.send("y"));
    pair.run();
  }
  Frame newest = next_frame(pair, "z");
  CHECK(pair.server.hear(newest, pair.now) == SLP_TAKEN);
  CHECK(pair.server.hear(newest, pair.now) == SLP_DROP_REPEATED);
  CHECK(pair.server.hear(late, pair.now) == SLP_DROP_REPEATED);
  CHECK(pair.server.messages.size() == 2502);
}

TEST_CASE(
    "a number further ahead than any honest peer's is refused and counted, and changes nothing",
    "[slp]") {
  constexpr uint32_t kAhead = 16'384;
  Pair pair;
  REQUIRE(pair.server.hear(next_frame(pair, "first"), pair.now) == SLP_TAKEN);
  Frame honest = next_frame(pair, "second");
  uint32_t largest = base_of(honest).number - 1;
  auto numbered = [&](uint32_t number) {
    Frame lie(honest);
    slp_base base = base_of(lie);
    base.number = number;
    seal(lie, base);
    return lie;
  };
  uint64_t refused = 0;
  for (uint32_t ahead : {kAhead + 1, 1u << 20, 1u << 30, (1u << 31) - 1}) {
    INFO(ahead << " ahead");
    CHECK(pair.server.hear(numbered(largest + ahead), pair.now) == SLP_DROP_NUMBER);
    CHECK(pair.server.dropped(SLP_DROP_NUMBER) == ++refused);
  }
  CHECK(pair.server.messages == std::vector<std::string>{"first"});
  CHECK(pair.server.hear(honest, pair.now) == SLP_TAKEN);
  CHECK(pair.server.messages == std::vector<std::string>{"first", "second"});
  CHECK(pair.server.hear(numbered(largest + 1 + kAhead), pair.now) == SLP_TAKEN);
  CHECK(pair.server.hear(numbered(largest + 1 + 2 * kAhead), pair.now) == SLP_TAKEN);
}

TEST_CASE("what an honest peer sends while nothing of it arrives leaves its numbers plausible",
          "[slp]") {
  Pair pair;
  constexpr uint64_t kBytes = 3'000'000;
  // Both ends send as much as they can, and the server acknowledges all that comes, in vain.
  uint32_t handle = pair.lend(1, kBytes, SLP_READ | SLP_WRITE);
  pair.client.memory[2].resize(kBytes);
  pair.client.memory[3].resize(kBytes);
  REQUIRE(slp_pull(pair.client.session, handle, 0, kBytes, 2) == SLP_OK);
  REQUIRE(slp_push(pair.client.session, handle, 0, kBytes, 3, nullptr) == SLP_OK);
  uint32_t heard = 0, ahead = 0;
  bool cut = false;
  pair.pass = [&](bool from_client, Frame& frame) {
    if (from_client) return true;
    cut = cut || heard > 500;
    if (cut)
      ahead = std::max(ahead, base_of(frame).number - heard);
    else
      heard = base_of(frame).number;
    return !cut;
  };
  pair.run(pair.now + 2 * kSecond);
  CAPTURE(ahead);
  CHECK(ahead > 100);
  CHECK(ahead < 16'384 / 4);
  pair.pass = nullptr;
  pair.run(pair.now + 10 * kSecond);
  CHECK(pair.client.ended.size() == 2);
  CHECK(pair.client.dropped(SLP_DROP_NUMBER) == 0);
  CHECK(slp_state_of(pair.client.session) == SLP_UP);
}

TEST_CASE("acknowledgements of what was not sent are refused, and change nothing", "[slp]") {
  Pair pair;
  REQUIRE(pair.client.send("hello"));
  std::vector<Frame> said = pair.client.say(pair.now);
  slp_view before, after;
  slp_view_of(pair.client.session, &before);
  REQUIRE(pair.server.send("answer"));
  Frame honest = pair.server.say(pair.now).back();
  for (uint32_t ack : {1000u, 0u, 0xffffffffu}) {
    Frame lie(honest);
    slp_base base = base_of(lie);
    base.flags |= SLP_FLAG_ACK;
    base.ack = ack;
    seal(lie, base);
    CHECK(pair.client.hear(lie, pair.now) == SLP_DROP_ACK);
  }
  {
    Frame lie(honest);
    slp_base base = base_of(lie);
    base.flags |= SLP_FLAG_ACK;
    base.ack = 1;
    base.ack_run = 1;  // 0 and below
    seal(lie, base);
    CHECK(pair.client.hear(lie, pair.now) == SLP_DROP_ACK);
  }
  slp_view_of(pair.client.session, &after);
  CHECK(after.in_flight_bytes == before.in_flight_bytes);
  CHECK(pair.client.dropped(SLP_DROP_ACK) == 4);
  CHECK(pair.client.hear(honest, pair.now) == SLP_TAKEN);
  CHECK(pair.client.messages == std::vector<std::string>{"answer"});
}

TEST_CASE("ranges of an ACK that run below the first frame are refused", "[slp]") {
  Pair pair;
  for (int i = 0; i < 6; ++i) (void)next_frame(pair, "m");
  REQUIRE(pair.server.send("a"));
  slp_base base = base_of(pair.server.say(pair.now).back());
  base.type = SLP_ACK;
  base.flags = SLP_FLAG_ACK;
  base.payload_bytes = 4;
  base.ack = 5;
  base.ack_run = 0;
  for (auto [gap, run] :
       {std::pair<uint16_t, uint16_t>{0, 1}, {1, 0}, {1, 4}, {5, 1}, {65535, 65535}}) {
    Frame lie(SLP_BASE_BYTES + SLP_ACK_BYTES + 4);
    slp_store16(lie.data() + SLP_BASE_BYTES, 1);
    slp_store16(lie.data() + SLP_BASE_BYTES + SLP_ACK_BYTES, gap);
    slp_store16(lie.data() + SLP_BASE_BYTES + SLP_ACK_BYTES + 2, run);
    seal(lie, base);
    CHECK(pair.client.hear(lie, pair.now) == SLP_DROP_ACK);
  }
}

TEST_CASE("a lone frame is acknowledged within the delay, sixteen at once, a gap at once",
          "[slp]") {
  Pair pair;
  auto acks_of = [&](int frames, bool gap) {
    if (slp_drained(pair.server.session)) pair.run(pair.now + 10 * kMillisecond);
    for (int i = 0; i < frames; ++i) {
      Frame frame = next_frame(pair, "m");
      if (gap && i == 0) continue;
      REQUIRE(pair.server.hear(frame, pair.now) == SLP_TAKEN);
    }
    return pair.server.say(pair.now);
  };
  CHECK(acks_of(1, false).empty());
  CHECK(slp_next_timeout(pair.server.session) <= pair.now + 200 * kMicrosecond);
  CHECK(acks_of(16, false).size() == 1);
  std::vector<Frame> told = acks_of(2, true);
  REQUIRE(told.size() == 1);
  CHECK(type_of(told[0]) == SLP_ACK);
  CHECK(slp_load16(told[0].data() + SLP_BASE_BYTES) >= 1);  // ranges: what is missing is told
  // Also when there is something to say anyway.
  REQUIRE(pair.server.send("answer"));
  told = acks_of(2, true);
  CHECK(std::count_if(told.begin(), told.end(), [](const Frame& frame) {
          return type_of(frame) == SLP_ACK && base_of(frame).payload_bytes >= 4;
        }) == 1);
  pair.run(pair.now + 10 * kMillisecond);
  CHECK(pair.server.messages.size() == 21);
}

TEST_CASE("frames that prove to have been late only teach patience", "[slp]") {
  Pair pair;
  auto round = [&] {
    Frame late = next_frame(pair, "late");
    for (int i = 0; i < 8; ++i)
      REQUIRE(pair.server.hear(next_frame(pair, "m"), pair.now) == SLP_TAKEN);
    pair.run(pair.now + 10 * kMillisecond);  // taken for lost, and sent again
    uint64_t resent = slp_counters_of(pair.client.session)->resent;
    (void)pair.server.hear(late, pair.now);
    pair.run(pair.now + 10 * kMillisecond);
    return resent;
  };
  slp_view before, after;
  slp_view_of(pair.client.session, &before);
  CHECK(before.reorder == 3);
  CHECK(round() == 1);
  slp_view_of(pair.client.session, &after);
  CHECK(after.reorder >= 8);
  CHECK(slp_counters_of(pair.client.session)->spurious == 1);
  CHECK(pair.server.messages.size() == 9);
}

}  // namespace sluice::slp::table
