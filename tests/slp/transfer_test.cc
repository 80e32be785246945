// Pulls and pushes: what they reach, what they refuse, how they end.
#include <catch2/catch.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/slp/table.h"

namespace sluice::slp::table {

TEST_CASE("pulls outside a handle, of a closed one or without the right end with the reason",
          "[slp]") {
  Pair pair;
  uint32_t readable = pair.lend(1, 5000, SLP_READ), writable = pair.lend(2, 5000, SLP_WRITE),
           closed = pair.lend(3, 5000, SLP_READ);
  slp_close_handle(pair.server.session, closed);
  struct Try {
    uint32_t handle;
    uint64_t offset, length;
    slp_status expected;
  };
  uint64_t cookie = 100;
  for (Try t :
       {Try{readable, 4000, 1001, SLP_BAD_RANGE}, Try{readable, 5001, 1, SLP_BAD_RANGE},
        Try{readable, UINT64_MAX - 10, 5, SLP_BAD_RANGE}, Try{writable, 0, 10, SLP_NO_RIGHT},
        Try{closed, 0, 10, SLP_BAD_HANDLE}, Try{readable + (1 << 16), 0, 10, SLP_BAD_HANDLE},
        Try{0xffff, 0, 10, SLP_BAD_HANDLE}, Try{readable, 0, 5000, SLP_OK}}) {
    pair.client.memory[++cookie].resize(t.length > 5000 ? 5000 : t.length);
    REQUIRE(slp_pull(pair.client.session, t.handle, t.offset, t.length, cookie) == SLP_OK);
    pair.run(pair.now + 10 * kMillisecond);
    REQUIRE(!pair.client.ended.empty());
    CHECK(pair.client.ended.back() == std::pair{cookie, t.expected});
  }
  CHECK(matches(1, pair.client.memory[cookie].data(), 5000));
  CHECK(pair.client.node.pulling == 0);
  CHECK(slp_pull(pair.client.session, readable, UINT64_MAX, 2, 9) == SLP_BAD_RANGE);
  CHECK(slp_pull(pair.client.session, readable, 0, 0, 9) == SLP_BAD_RANGE);
}

TEST_CASE("a window that begins at a random offset is reached there and nowhere else", "[slp]") {
  Pair pair;
  constexpr uint64_t kBase = 0x2345678912345678, kBytes = 5000;
  pair.server.memory[1].resize(kBytes);
  fill(1, 0, pair.server.memory[1].data(), kBytes);
  uint32_t handle = 0;
  REQUIRE(slp_open_handle_at(pair.server.session, 1, kBase, kBytes, SLP_READ | SLP_WRITE, &handle));
  uint64_t cookie = 100;
  for (auto [offset, length, expected] :
       {std::tuple{uint64_t{0}, kBytes, SLP_BAD_RANGE},
        std::tuple{kBase - 1, uint64_t{1}, SLP_BAD_RANGE},
        std::tuple{kBase - 1, kBytes, SLP_BAD_RANGE}, std::tuple{kBase + 1, kBytes, SLP_BAD_RANGE},
        std::tuple{kBase + kBytes, uint64_t{1}, SLP_BAD_RANGE},
        std::tuple{kBase + kBytes - 1, uint64_t{1}, SLP_OK}, std::tuple{kBase, kBytes, SLP_OK}}) {
    pair.client.memory[++cookie].resize(length);
    REQUIRE(slp_pull(pair.client.session, handle, offset, length, cookie) == SLP_OK);
    pair.run(pair.now + 10 * kMillisecond);
    CHECK(pair.client.ended.back() == std::pair{cookie, expected});
    if (expected != SLP_BAD_RANGE) continue;
    REQUIRE(slp_push(pair.client.session, handle, offset, length, cookie, nullptr) == SLP_OK);
    pair.run(pair.now + 10 * kMillisecond);
    CHECK(pair.client.ended.back() == std::pair{cookie, expected});
  }
  CHECK(matches(1, pair.client.memory[cookie].data(), kBytes));
  pair.client.memory[200].assign(10, 0x77);
  REQUIRE(slp_push(pair.client.session, handle, kBase + kBytes - 10, 10, 200, nullptr) == SLP_OK);
  pair.run(pair.now + 10 * kMillisecond);
  CHECK(pair.client.ended.back() == std::pair{uint64_t{200}, SLP_OK});
  CHECK(std::count(pair.server.memory[1].end() - 10, pair.server.memory[1].end(), 0x77) == 10);
}

TEST_CASE("a push arrives whole, then the notice, then its end", "[slp]") {
  Pair pair;
  uint32_t handle = pair.lend(5, 100'000, SLP_WRITE), notice = 77;
  pair.client.memory[6].resize(90'001);
  fill(6, 0, pair.client.memory[6].data(), 90'001);
  REQUIRE(slp_push(pair.client.session, handle, 9'999, 90'001, 6, &notice) == SLP_OK);
  pair.run(pair.now + 100 * kMillisecond);
  CHECK(pair.server.notices == std::vector<uint32_t>{77});
  REQUIRE(pair.client.ended.size() == 1);
  CHECK(pair.client.ended[0] == std::pair{uint64_t{6}, SLP_OK});
  CHECK(matches(6, pair.server.memory[5].data() + 9'999, 90'001));
  CHECK(pair.server.placed == 90'001);
}

TEST_CASE("DATA outside its transfer, its grant or its window is refused", "[slp]") {
  Pair pair;
  uint32_t handle = pair.lend(1, 10 * SLP_UNIT_BYTES + 5, SLP_READ);
  pair.client.memory[2].resize(10 * SLP_UNIT_BYTES + 5);
  REQUIRE(slp_pull(pair.client.session, handle, 0, 10 * SLP_UNIT_BYTES + 5, 2) == SLP_OK);
  Frame data;
  pair.pass = [&](bool, Frame& frame) {
    if (type_of(frame) == SLP_DATA && data.empty()) data = frame;
    return type_of(frame) != SLP_DATA;
  };
  pair.run();
  REQUIRE(!data.empty());
  auto at = [&](uint64_t offset, uint32_t transfer_change = 0) {
    Frame lie(data);
    slp_base base = base_of(data);
    slp_store64(lie.data() + SLP_BASE_BYTES, offset);
    slp_store32(lie.data() + SLP_BASE_BYTES + 8,
                slp_load32(data.data() + SLP_BASE_BYTES + 8) ^ transfer_change);
    seal(lie, base);
    return pair.client.hear(lie, pair.now);
  };
  CHECK(at(1) == SLP_DROP_CONTENT);
  CHECK(at(11 * SLP_UNIT_BYTES) == SLP_DROP_RANGE);
  CHECK(at(10 * SLP_UNIT_BYTES) == SLP_DROP_RANGE);  // longer than what is left
  CHECK(at(uint64_t{SLP_UNIT_BYTES} << 40) == SLP_DROP_RANGE);
  CHECK(at(0, 0x7f) == SLP_DROP_CONTENT);
  CHECK(at(0, SLP_TRANSFERS) == SLP_DROP_CONTENT);  // one more than there are
  CHECK(at(0, SLP_TRANSFER_PUSH) == SLP_DROP_TRANSFER);
  CHECK(pair.client.placed == 0);
  CHECK(at(0) == SLP_TAKEN);
  CHECK(pair.client.placed == SLP_UNIT_BYTES);
  pair.pass = nullptr;
  pair.run(pair.now + kSecond);
  CHECK(pair.client.placed == 10 * SLP_UNIT_BYTES + 5);
  CHECK(matches(1, pair.client.memory[2].data(), 10 * SLP_UNIT_BYTES + 5));
}

TEST_CASE("DATA of a push beyond its window is refused, and nothing of a cancelled one is placed",
          "[slp]") {
  Pair pair;
  constexpr uint64_t kUnits = 2 * SLP_TRANSFER_UNITS, kBytes = kUnits * SLP_UNIT_BYTES;
  uint32_t handle = pair.lend(1, kBytes, SLP_WRITE);
  pair.client.memory[2].resize(kBytes);
  REQUIRE(slp_push(pair.client.session, handle, 0, kBytes, 2, nullptr) == SLP_OK);
  pair.run(pair.now + kSecond);  // a first push begins with two frames
  REQUIRE(pair.client.ended.size() == 1);
  pair.client.ended.clear();
  pair.server.placed = 0;
  REQUIRE(slp_push(pair.client.session, handle, 0, kBytes, 2, nullptr) == SLP_OK);
  std::vector<Frame> held;
  pair.pass = [&](bool, Frame& frame) {
    if (type_of(frame) == SLP_DATA) held.push_back(frame);
    return type_of(frame) != SLP_DATA;
  };
  pair.run();
  REQUIRE(held.size() > 4);
  auto at = [&](uint64_t unit) {
    Frame lie(held[0]);
    slp_base base = base_of(lie);
    slp_store64(lie.data() + SLP_BASE_BYTES, unit * SLP_UNIT_BYTES);
    seal(lie, base);
    return pair.server.hear(lie, pair.now);
  };
  CHECK(at(SLP_TRANSFER_UNITS) == SLP_DROP_RANGE);
  CHECK(at(SLP_TRANSFER_UNITS - 1) == SLP_TAKEN);
  CHECK(pair.server.hear(held[1], pair.now) == SLP_TAKEN);
  CHECK(pair.server.placed == 2 * SLP_UNIT_BYTES);
  REQUIRE(slp_cancel(pair.client.session, 2));
  CHECK_FALSE(slp_cancel(pair.client.session, 2));
  pair.run();
  CHECK(pair.server.hear(held[2], pair.now) == SLP_TAKEN);
  CHECK(pair.server.placed == 2 * SLP_UNIT_BYTES);
  pair.pass = nullptr;
  pair.run(pair.now + kSecond);
  CHECK(slp_drained(pair.client.session));
  CHECK(pair.client.ended.empty());
}

TEST_CASE("ends whose ways take less than 1452 bytes agree on smaller units", "[slp]") {
  struct Ways {
    uint16_t client, server, unit;
  };
  auto [ours, theirs, unit] =
      GENERATE(Ways{1232, 1232, SLP_SMALL_UNIT_BYTES}, Ways{1400, 9000, SLP_SMALL_UNIT_BYTES},
               Ways{9000, 1232, SLP_SMALL_UNIT_BYTES}, Ways{1451, 1452, SLP_SMALL_UNIT_BYTES},
               Ways{1452, 1452, SLP_UNIT_BYTES});
  INFO("client " << ours << ", server " << theirs);
  Pair pair(ours, 1 << 20, {}, {}, theirs);
  const uint64_t bytes = 2 * SLP_TRANSFER_UNITS * uint64_t{unit} + 100;
  pair.client.memory[2].resize(bytes);
  pair.client.memory[4].resize(bytes);
  fill(4, 0, pair.client.memory[4].data(), bytes);
  size_t longest = 0;
  uint64_t sent = 0;
  pair.pass = [&](bool, Frame& frame) {
    longest = std::max(longest, frame.size());
    if (type_of(frame) != SLP_DATA) return true;
    CHECK(slp_load64(frame.data() + SLP_BASE_BYTES) % unit == 0);
    return ++sent % 7 != 0 || sent > 200;  // some are lost
  };
  uint32_t source = pair.lend(1, bytes, SLP_READ), place = pair.lend(3, bytes, SLP_WRITE);
  REQUIRE(slp_pull(pair.client.session, source, 0, bytes, 2) == SLP_OK);
  REQUIRE(slp_push(pair.client.session, place, 0, bytes, 4, nullptr) == SLP_OK);
  pair.run(pair.now + kSecond);
  CHECK(slp_state_of(pair.client.session) == SLP_UP);
  CHECK(slp_drained(pair.client.session));
  CHECK(matches(1, pair.client.memory[2].data(), bytes));
  CHECK(matches(4, pair.server.memory[3].data(), bytes));
  CHECK(longest <= std::min(ours, theirs));
  CHECK(longest > unit);
  CHECK(slp_least_frame_bytes(pair.client.session) == slp_least_frame_bytes(pair.server.session));
}

TEST_CASE("an end that takes less than 1232 bytes is refused, and no way becomes narrower",
          "[slp]") {
  Pair pair(1400);
  slp_limit_frame(pair.client.session, 600);
  CHECK(slp_frame_bytes(pair.client.session) == 1232);
  slp_hello narrow = pair.met.hello;
  narrow.mtu = 1231;
  slp_config config = pair.server.config(1400);
  slp_session* made = nullptr;
  std::vector<uint64_t> room(slp_session_bytes() / 8 + 1);
  CHECK(slp_accept(room.data(), &config, &narrow, pair.now, &made) == SLP_BROKEN);
  narrow.mtu = 1232;
  CHECK(slp_accept(room.data(), &config, &narrow, pair.now, &made) == SLP_OK);
}

TEST_CASE("what finds no room in the control stream goes later, in order", "[slp]") {
  Pair pair;
  uint32_t large = pair.lend(1, 1'000'000, SLP_READ), handle = pair.lend(2, 5000, SLP_READ);
  pair.client.memory[3].resize(1'000'000);
  pair.pass = [](bool, Frame&) { return false; };
  // One PULL and 41 with their DONE leave 44 bytes of 2,048: a PULL fits, its DONE does not.
  pair.client.memory[5].resize(5000);
  REQUIRE(slp_pull(pair.client.session, handle, 0, 5000, 5) == SLP_OK);
  for (int i = 0; i < 200; ++i) {
    REQUIRE(slp_pull(pair.client.session, large, 0, 1'000'000, 3) == SLP_OK);
    pair.run();
    REQUIRE(slp_cancel(pair.client.session, 3));
  }
  CHECK(slp_state_of(pair.client.session) == SLP_UP);
  pair.pass = nullptr;
  pair.run(pair.now + kSecond);
  CHECK(slp_drained(pair.client.session));
  CHECK(slp_drained(pair.server.session));
  CHECK(pair.client.node.pulling == 0);
  // Each of them was given up: the server has nothing to take back.
  slp_close_handle(pair.server.session, large);
  CHECK(pair.server.say(pair.now).empty());
  pair.client.memory[4].resize(5000);
  REQUIRE(slp_pull(pair.client.session, handle, 0, 5000, 4) == SLP_OK);
  pair.run(pair.now + kSecond);
  REQUIRE(pair.client.ended.size() == 2);
  CHECK(pair.client.ended[1] == std::pair{uint64_t{4}, SLP_OK});
  CHECK(matches(2, pair.client.memory[4].data(), 5000));
}

TEST_CASE("after a handle is closed nothing of it is read or written", "[slp]") {
  for (bool pull : {true, false}) {
    Pair pair;
    constexpr uint64_t kBytes = 3'000'000;
    uint32_t handle = pair.lend(1, kBytes, SLP_READ | SLP_WRITE);
    pair.client.memory[2].resize(kBytes);
    REQUIRE((pull ? slp_pull(pair.client.session, handle, 0, kBytes, 2)
                  : slp_push(pair.client.session, handle, 0, kBytes, 2, nullptr)) == SLP_OK);
    int seen = 0;
    pair.pass = [&](bool, Frame& frame) { return type_of(frame) != SLP_DATA || ++seen <= 20; };
    pair.run();
    REQUIRE(seen > 20);
    slp_close_handle(pair.server.session, handle);
    uint64_t placed = pair.server.placed;
    pair.server.memory.erase(1);  // reading or writing it throws
    pair.pass = nullptr;
    pair.run(pair.now + kSecond);
    CHECK(pair.server.placed == placed);
    REQUIRE(pair.client.ended.size() == 1);
    CHECK(pair.client.ended[0] == std::pair{uint64_t{2}, SLP_BAD_HANDLE});
    CHECK(pair.client.node.pulling == 0);
    CHECK(slp_state_of(pair.client.session) == SLP_UP);
  }
}

TEST_CASE(
    "a transfer that is given up while the control stream is full is given up at the other end "
    "later",
    "[slp]") {
  constexpr uint64_t kBytes = 500'000;
  Pair pair(1452, 1 << 30);
  uint32_t handle = pair.lend(1, kBytes, SLP_READ);
  uint64_t sent = 0;
  pair.pass = [&](bool from_client, Frame& frame) {
    if (!from_client && type_of(frame) == SLP_DATA) sent += frame.size();
    return true;
  };
  // 48 bytes each, and 2,048 in all: of the last ones the request finds room, its end does not.
  for (int round = 0; round < 3; ++round) {
    for (uint64_t cookie = 10; cookie < 26; ++cookie) {
      pair.client.memory[cookie].resize(kBytes);
      REQUIRE(slp_pull(pair.client.session, handle, 0, kBytes, cookie) == SLP_OK);
    }
    for (uint64_t cookie = 10; cookie < 26; ++cookie)
      REQUIRE(slp_cancel(pair.client.session, cookie));
  }
  pair.run(pair.now + kSecond);
  CHECK(sent > 0);
  CHECK(sent < 5 * kBytes);
  CHECK(slp_drained(pair.client.session));
  CHECK(pair.client.ended.empty());
  CHECK(pair.client.node.pulling == 0);
}

TEST_CASE("transfers under way take turns, frame by frame", "[slp]") {
  constexpr uint64_t kBytes = 15 * SLP_UNIT_BYTES;  // all that are pulled are asked for at once
  for (bool pull : {true, false}) {
    Pair pair;
    uint32_t handle = pair.lend(1, kBytes, SLP_READ | SLP_WRITE);
    // A new peer is not asked for as much as that at once.
    pair.client.memory[9].resize(kBytes);
    for (int i = 0; i < 4; ++i) {
      REQUIRE(slp_pull(pair.client.session, handle, 0, kBytes, 9) == SLP_OK);
      pair.run(pair.now + kSecond);
    }
    REQUIRE(pair.client.ended.size() == 4);
    std::map<uint32_t, int> frames;  // of each transfer
    int unfair = 0;
    pair.pass = [&](bool, Frame& frame) {
      if (type_of(frame) != SLP_DATA) return true;
      ++frames[slp_load32(frame.data() + SLP_BASE_BYTES + 8)];
      auto [least, most] = std::minmax_element(
          frames.begin(), frames.end(), [](auto& a, auto& b) { return a.second < b.second; });
      if (frames.size() == 5) unfair = std::max(unfair, most->second - least->second);
      return true;
    };
    for (uint64_t cookie = 10; cookie < 15; ++cookie) {
      pair.client.memory[cookie].resize(kBytes);
      REQUIRE((pull ? slp_pull(pair.client.session, handle, 0, kBytes, cookie)
                    : slp_push(pair.client.session, handle, 0, kBytes, cookie, nullptr)) == SLP_OK);
    }
    pair.run(pair.now + kSecond);
    CHECK(pair.client.ended.size() == 9);
    CHECK(frames.size() == 5);
    CHECK(unfair == 1);
  }
}

TEST_CASE("pulls ask for no more than the node's budget", "[slp]") {
  constexpr uint64_t kBudget = 20'000;
  Pair pair(1452, kBudget);
  uint32_t handle = pair.lend(1, 1'000'000, SLP_READ);
  uint64_t most = 0;
  for (uint64_t cookie = 10; cookie < 14; ++cookie) {
    pair.client.memory[cookie].resize(1'000'000);
    REQUIRE(slp_pull(pair.client.session, handle, 0, 1'000'000, cookie) == SLP_OK);
  }
  pair.pass = [&](bool, Frame&) {
    most = std::max(most, pair.client.node.pulling);
    return true;
  };
  pair.run(pair.now + 10 * kSecond);
  CHECK(pair.client.ended.size() == 4);
  CHECK(most <= kBudget + SLP_UNIT_BYTES);
  CHECK(most > kBudget / 2);
  CHECK(pair.client.node.pulling == 0);
}

TEST_CASE("where large frames vanish, smaller ones carry everything", "[slp]") {
  Pair pair(9000);
  uint32_t handle = pair.lend(1, 500'000, SLP_READ);
  pair.client.memory[2].resize(500'000);
  pair.pass = [](bool, Frame& frame) { return frame.size() <= 1452; };
  REQUIRE(slp_pull(pair.client.session, handle, 0, 500'000, 2) == SLP_OK);
  pair.run(pair.now + 5 * kSecond);
  REQUIRE(pair.client.ended.size() == 1);
  CHECK(pair.client.ended[0].second == SLP_OK);
  CHECK(matches(1, pair.client.memory[2].data(), 500'000));
  CHECK(slp_frame_bytes(pair.server.session) <= 2250);  // of DATA one unit fits, and no two
  CHECK(slp_counters_of(pair.server.session)->frames_halved >= 2);
}

// A peer that asks for what it may not reach, and acknowledges no answer: one more finds no room.
// Before that `begin` has begun something of the peer's.
struct Deaf : Pair {
  explicit Deaf(
      int requests, const std::function<void(Deaf&)>& begin = [](Deaf&) {}) {
    uint32_t large = lend(1, 1'000'000, SLP_READ);
    client.memory[4].resize(1'000'000);
    pass = [this](bool, Frame& frame) { return !hold_data(frame); };
    REQUIRE(slp_pull(client.session, large, 0, 1'000'000, 4) == SLP_OK);
    begin(*this);
    run();
    pass = [this](bool from_client, Frame& frame) {
      return from_client ? type_of(frame) == SLP_ACK : !hold_data(frame);
    };
    for (int i = 0; i < requests && slp_state_of(client.session) == SLP_UP; ++i) {
      REQUIRE(slp_pull(server.session, 0x12345, 0, 1, 5) == SLP_OK);
      REQUIRE(slp_cancel(server.session, 5));
      run(now + 10 * kMillisecond);
    }
  }
  bool hold_data(const Frame& frame) {
    if (type_of(frame) == SLP_DATA && frame.size() < 1200) held = frame;
    return type_of(frame) == SLP_DATA;
  }
  Frame held;  // the last DATA of less than a frame's payload, if there was any
};

// So many that there is room for no further answer.
int most_requests(const std::function<void(Deaf&)>& begin = [](Deaf&) {}) {
  int most = 1;
  while (slp_state_of(Deaf(most + 1, begin).client.session) == SLP_UP) REQUIRE(++most < 1000);
  return most;
}

TEST_CASE("a cancel that finds no room for its DONE ends the session, and its transfer once",
          "[slp]") {
  Deaf pair(most_requests());
  REQUIRE(slp_state_of(pair.client.session) == SLP_UP);
  CHECK(slp_cancel(pair.client.session, 4));
  CHECK(slp_state_of(pair.client.session) == SLP_DOWN);
  CHECK(slp_why_of(pair.client.session) == SLP_BROKEN);
  CHECK(pair.client.ended.empty());
  CHECK(pair.client.node.pulling == 0);
}

TEST_CASE("a handle that is closed without room to tell of it ends the session, with all it held",
          "[slp]") {
  uint32_t handle = 0;
  const auto begin = [&](Deaf& pair) {
    pair.client.memory[9].resize(1000);
    REQUIRE(slp_open_handle(pair.client.session, 9, 1000, SLP_WRITE, &handle));
    pair.server.memory[6].resize(1000);
    REQUIRE(slp_push(pair.server.session, handle, 0, 1000, 6, nullptr) == SLP_OK);
  };
  Deaf pair(most_requests(begin), begin);
  REQUIRE(slp_state_of(pair.client.session) == SLP_UP);
  slp_close_handle(pair.client.session, handle);
  CHECK(slp_state_of(pair.client.session) == SLP_DOWN);
  CHECK(pair.client.node.pulling == 0);
  CHECK(pair.client.ended == std::vector{std::pair{uint64_t{4}, SLP_BROKEN}});
}

TEST_CASE("a push whose end finds no room for its DONE is not told of as written", "[slp]") {
  uint32_t notice = 77;
  const auto begin = [&](Deaf& pair) {
    uint32_t handle = 0;
    pair.client.memory[9].resize(1000);
    REQUIRE(slp_open_handle(pair.client.session, 9, 1000, SLP_WRITE, &handle));
    pair.server.memory[6].resize(1000);
    REQUIRE(slp_push(pair.server.session, handle, 0, 1000, 6, &notice) == SLP_OK);
  };
  Deaf pair(most_requests(begin), begin);
  REQUIRE(slp_state_of(pair.client.session) == SLP_UP);
  REQUIRE_FALSE(pair.held.empty());
  CHECK(pair.client.hear(pair.held, pair.now) == SLP_TAKEN);
  CHECK(pair.client.notices.empty());
  CHECK(slp_state_of(pair.client.session) == SLP_DOWN);
  CHECK(slp_why_of(pair.client.session) == SLP_BROKEN);
}

}  // namespace sluice::slp::table
