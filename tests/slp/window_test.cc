// What the window learns from a round trip. It doubles while the time stays the same, and no longer
// once that grows. Loss halves it only if time, or very much loss, says that a queue was full.
#include <deque>

#include "tests/slp/table.h"

namespace sluice::slp::table {
namespace {

// Several, because the receiver lets each have little under way.
constexpr uint64_t kPulls = 12, kBytes = 4'000'000;

struct Stream {
  Stream() {
    uint32_t handle = pair.lend(1, kPulls * kBytes, SLP_READ);
    for (uint64_t i = 0; i < kPulls; ++i) {
      pair.client.memory[2 + i].resize(kBytes);
      REQUIRE(slp_pull(pair.client.session, handle, i * kBytes, kBytes, 2 + i) == SLP_OK);
    }
  }
  uint64_t window() const {
    slp_view view;
    slp_view_of(pair.server.session, &view);
    return view.window_bytes;
  }
  // What the server says arrives after so long, but for every so-manieth frame; what the client
  // answers, at once. Both are asked all the time.
  void run(uint64_t rtt, uint64_t round_trips) {
    for (uint64_t end = pair.now + round_trips * rtt; pair.now < end;
         pair.now += 5 * kMicrosecond) {
      slp_on_timer(pair.client.session, pair.now);
      slp_on_timer(pair.server.session, pair.now);
      for (; !way.empty() && way.front().first <= pair.now; way.pop_front())
        (void)pair.client.hear(way.front().second, pair.now);
      for (const Frame& frame : pair.client.say(pair.now)) (void)pair.server.hear(frame, pair.now);
      for (Frame& frame : pair.server.say(pair.now)) {
        if (lose_each == 0 || ++said % lose_each != 0)
          way.emplace_back(pair.now + rtt, std::move(frame));
      }
    }
  }
  std::deque<std::pair<uint64_t, Frame>> way;
  uint64_t lose_each = 0, said = 0;  // 0: none
  Pair pair{1452, 16 << 20};
};

TEST_CASE("a window that is used doubles in each round trip of the same time", "[slp]") {
  Stream stream;
  uint64_t first = stream.window();
  stream.run(90 * kMicrosecond, 10);
  CAPTURE(first, stream.window());
  CHECK(stream.window() >= 6 * first);
  CHECK(slp_counters_of(stream.pair.server.session)->resent == 0);
}

TEST_CASE("a round trip that grows to more than twice ends the doubling before anything is lost",
          "[slp]") {
  Stream stream;
  stream.run(90 * kMicrosecond, 4);  // a new peer is asked for little at first
  uint64_t first = stream.window();
  stream.run(600 * kMicrosecond, 10);
  CAPTURE(first, stream.window());
  // The round trip in which it grew, and the one that was under way; then no more, up to a limit
  // that is 5.7 times as much.
  CHECK(stream.window() <= 4 * first + 10 * 1500);
  CHECK(slp_counters_of(stream.pair.server.session)->resent == 0);
}

TEST_CASE("a way that has become longer for good is no queue after a minute", "[slp]") {
  Stream stream;
  stream.run(90 * kMicrosecond, 3);
  const auto at_times = [&](uint64_t seconds) {
    for (uint64_t second = 0; second < seconds; second += 2) {
      stream.pair.now += 2'000'000 * kMicrosecond;
      stream.run(600 * kMicrosecond, 3);
    }
  };
  at_times(20);
  const uint64_t before = stream.window();
  stream.run(600 * kMicrosecond, 20);
  CHECK(stream.window() == before);
  at_times(60);
  const uint64_t after = stream.window();
  stream.run(600 * kMicrosecond, 20);
  CAPTURE(before, after, stream.window());
  CHECK(stream.window() >= after + 10 * 1400);
}

TEST_CASE("loss that takes no time is a bad cable's, and the window goes on", "[slp]") {
  Stream stream;
  uint64_t first = stream.window();
  stream.lose_each = 10;
  stream.run(90 * kMicrosecond, 30);
  CAPTURE(first, stream.window());
  CHECK(stream.window() >= 4 * first);
  CHECK(slp_counters_of(stream.pair.server.session)->resent > 20);
}

TEST_CASE("the same loss halves the window if the round trip grew, and so does much more of it",
          "[slp]") {
  for (uint64_t rtt : {90 * kMicrosecond, 150 * kMicrosecond}) {
    Stream stream;
    stream.run(90 * kMicrosecond, 10);
    uint64_t first = stream.window();
    stream.lose_each = rtt == 90 * kMicrosecond ? 3 : 10;
    stream.run(rtt, 20);
    CAPTURE(rtt, first, stream.window());
    CHECK(stream.window() <= first / 4);
  }
}

}  // namespace
}  // namespace sluice::slp::table
