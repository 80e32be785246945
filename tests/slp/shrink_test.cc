// A way that takes large frames, and then no more, when as many as may be are in the air.
#include <catch2/catch.hpp>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "tests/slp/table.h"

namespace sluice::slp::table {
namespace {

constexpr uint64_t kDelay = 45 * kMicrosecond;  // so that a window can be filled

// Two ends and a wire with a delay between them. The client pushes all that it may at a time.
struct Way {
  explicit Way(uint16_t mtu)
      : pair(mtu),
        units((mtu - SLP_BASE_BYTES - SLP_DATA_BYTES) / SLP_UNIT_BYTES),
        bytes(34 * units * SLP_UNIT_BYTES + 100) {
    for (uint64_t i = 0; i < SLP_TRANSFERS; ++i) {
      handles.push_back(pair.lend(i, bytes, SLP_WRITE));
      pair.client.memory[100 + i].resize(bytes);
      fill(100 + i, 0, pair.client.memory[100 + i].data(), bytes);
    }
  }
  void push_all() {
    pair.client.ended.clear();
    for (uint64_t i = 0; i < SLP_TRANSFERS; ++i) {
      pair.server.memory[i].assign(bytes, 0);
      REQUIRE(slp_push(pair.client.session, handles[i], 0, bytes, 100 + i, nullptr) == SLP_OK);
    }
  }
  uint64_t whole() const {
    return SLP_BASE_BYTES + SLP_DATA_BYTES + units * SLP_UNIT_BYTES;
  }  // frame
  bool over() const { return pair.client.ended.size() == SLP_TRANSFERS; }
  slp_view view() const {
    slp_view seen;
    slp_view_of(pair.client.session, &seen);
    return seen;
  }
  void step() {
    for (End* from : {&pair.client, &pair.server}) {
      slp_on_timer(from->session, pair.now);
      for (Frame& frame : from->say(pair.now)) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        bool lost = frame.size() > longest || pair.now < dark_until ||
                    random >> 33 < loss * (1u << 31) / 100;
        // The client must find out by itself, not by what the other end asks for its own sake.
        bool asks = from == &pair.server && type_of(frame) == SLP_PING;
        if (!lost && !asks)
          wire.push_back({pair.now + kDelay, from == &pair.client ? &pair.server : &pair.client,
                          std::move(frame)});
      }
    }
    uint64_t next =
        std::min(slp_next_timeout(pair.client.session), slp_next_timeout(pair.server.session));
    if (!wire.empty()) next = std::min(next, wire.front().due);
    pair.now = std::max(pair.now + kMicrosecond, next);
    for (; !wire.empty() && wire.front().due <= pair.now; wire.pop_front())
      (void)wire.front().to->hear(wire.front().frame, pair.now);
  }
  bool run_until_over() {
    for (int steps = 0; !over() && steps < 150'000; ++steps)
      step();  // all of them take less than half of it
    return over();
  }

  struct Flying {
    uint64_t due;
    End* to;
    Frame frame;
  };
  Pair pair;
  uint64_t units, bytes;  // of a frame; of each push: all of them are more than may be in the air
  std::vector<uint32_t> handles;
  std::deque<Flying> wire;
  size_t longest = 65'535;
  uint64_t dark_until = 0, loss = 0, random = 1;  // loss: per cent
};

struct Turn {
  const char* name;
  uint64_t dark, loss;
  bool told;
};

}  // namespace

TEST_CASE(
    "large frames that begin to vanish when as many as may be are in the air leave room for their "
    "pieces",
    "[slp]") {
  uint16_t mtu = GENERATE(as<uint16_t>{}, 9000, 65'000);
  Turn turn = GENERATE(
      Turn{"at once", 0, 0, false},
      Turn{"after a tenth of a second in which nothing arrives", 100 * kMillisecond, 0, false},
      Turn{"after two and a half seconds in which nothing arrives", 2500 * kMillisecond, 0, false},
      Turn{"while a fifth of all frames is lost", 0, 20, false},
      Turn{"and the carrier says so", 0, 0, true},
      Turn{"and the carrier says so, two and a half seconds before anything arrives",
           2500 * kMillisecond, 0, true},
      Turn{"and the carrier says so, while two fifths are lost", 30 * kMillisecond, 40, true});
  INFO("largest frame " << mtu << ", " << turn.name);
  Way way(mtu);
  // Until the window is as large as it may be.
  for (int rounds = 0; rounds < 10 && way.view().window_bytes < 500 * way.whole(); ++rounds) {
    way.push_all();
    REQUIRE(way.run_until_over());
  }
  way.push_all();
  for (int steps = 0; steps < 1000 && way.view().in_flight_bytes < 495 * way.whole(); ++steps)
    way.step();
  REQUIRE(way.view().in_flight_bytes >= 495 * way.whole());
  std::erase_if(way.wire, [&](const Way::Flying& flying) {
    return turn.dark > 0 || flying.frame.size() > 1452;
  });
  way.longest = 1452;
  way.dark_until = way.pair.now + turn.dark;
  way.loss = turn.loss;
  if (turn.told) slp_limit_frame(way.pair.client.session, 1452);
  REQUIRE(way.run_until_over());
  for (uint64_t i = 0; i < SLP_TRANSFERS; ++i) {
    CHECK(way.pair.client.ended[i].second == SLP_OK);
    CHECK(
        (way.pair.server.memory[i] == way.pair.client.memory[100 + i]));  // not printed: it is long
  }
}

}  // namespace sluice::slp::table
