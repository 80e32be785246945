// Two ends of SLP on a table: frames are passed by hand, held back, changed, invented.
#include <catch2/catch.hpp>

#include <deque>
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernel_compat/slp/slp.h"
#include "tests/slp/judge.h"

namespace {

constexpr uint64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond, kSecond = 1000 * kMillisecond;
using Frame = std::vector<uint8_t>;

uint8_t type_of(const Frame& frame) { return frame[0] & 31; }
void seal(Frame& frame, const slp_base& base) { slp_encode_base(frame.data(), &base); }
slp_base base_of(const Frame& frame) {
  slp_base base;
  REQUIRE(slp_decode_base(frame.data(), frame.size(), frame.size(), &base) == SLP_TAKEN);
  return base;
}

struct End {
  explicit End(uint64_t budget = 1 << 20) { slp_node_init(&node, budget); }
  static const slp_ops kOps;
  slp_config config(uint16_t mtu) {
    slp_config made;
    slp_config_init(&made);
    made.ops = &kOps;
    made.user = this;
    made.node = &node;
    made.mtu = mtu;
    return made;
  }
  slp_drop hear(const Frame& frame, uint64_t now) {
    Frame exact(frame);
    slp_frame in{.data = exact.data(), .present = exact.size(), .bytes = exact.size(), .ce = false, .context = nullptr};
    return slp_on_frame(session, now, &in);
  }
  std::vector<Frame> say(uint64_t now) {
    std::vector<Frame> frames;
    slp_tx tx;
    while (slp_poll_tx(session, now, &tx)) {
      Frame frame(tx.header, tx.header + tx.header_bytes);
      for (int i = 0; i < 2; ++i) frame.insert(frame.end(), tx.piece[i], tx.piece[i] + tx.piece_bytes[i]);
      if (tx.from_memory) {
        const uint8_t* from = memory.at(tx.cookie).data() + tx.offset;
        frame.insert(frame.end(), from, from + tx.bytes);
      }
      frames.push_back(std::move(frame));
      REQUIRE(frames.size() < 10'000);
    }
    return frames;
  }
  uint64_t dropped(slp_drop why) const { return slp_counters_of(session)->dropped[why]; }
  bool send(const std::string& text) {
    return slp_send(session, nullptr, reinterpret_cast<const uint8_t*>(text.data()), static_cast<uint32_t>(text.size()), nullptr, 0);
  }

  slp_node node;
  std::vector<uint64_t> room = std::vector<uint64_t>((slp_session_bytes() + 7) / 8);
  slp_session* session = nullptr;
  std::map<uint64_t, std::vector<uint8_t>> memory;
  std::vector<std::string> messages;
  std::vector<std::pair<uint64_t, slp_status>> ended;
  std::vector<uint32_t> notices;
  uint64_t placed = 0;
  bool full = false;
};

const slp_ops End::kOps = {
    .place = [](void* user, uint64_t cookie, uint64_t offset, const slp_frame* frame, uint32_t at, uint32_t bytes) {
      auto* end = static_cast<End*>(user);
      REQUIRE(offset + bytes <= end->memory.at(cookie).size());
      std::copy_n(frame->data + at, bytes, end->memory.at(cookie).data() + offset);
      end->placed += bytes;
    },
    .message = [](void* user, const slp_rts*, const uint8_t* data, uint32_t bytes) {
      auto* end = static_cast<End*>(user);
      if (end->full) return false;
      end->messages.emplace_back(reinterpret_cast<const char*>(data), bytes);
      return true;
    },
    .ended = [](void* user, uint64_t cookie, slp_status status) { static_cast<End*>(user)->ended.emplace_back(cookie, status); },
    .written = [](void* user, uint64_t, bool noticed, uint32_t notice) {
      if (noticed) static_cast<End*>(user)->notices.push_back(notice);
    },
    .state = nullptr,
    .wake = nullptr,
    .source_crc = nullptr,
    .frame_crc = nullptr,
};

// Both ends are up, and have nothing to say.
struct Pair {
  Pair(const Pair&) = delete;
  explicit Pair(uint16_t mtu = 1452, uint64_t budget = 1 << 20) : client(budget), server(budget) {
    slp_config ours = client.config(mtu);
    ours.nonce = 0x1111, ours.connection = 0x10005, ours.source_port = 7, ours.destination_port = 9;
    client.session = slp_connect(client.room.data(), &ours, now);
    slp_listener listener{.secret = {1, 2, 3}, .port = 9, .mtu = mtu};
    for (int round = 0; round < 2; ++round) {
      std::vector<Frame> said = client.say(now);
      REQUIRE(said.size() == 1);
      slp_frame in{.data = said[0].data(), .present = said[0].size(), .bytes = said[0].size(), .ce = false, .context = nullptr};
      slp_answer answer = slp_listen(&listener, now, reinterpret_cast<const uint8_t*>("client"), 6, &in, &met);
      REQUIRE(answer == (round == 0 ? SLP_LISTEN_REPLY : SLP_LISTEN_ACCEPT));
      if (round == 0) REQUIRE(client.hear({met.reply, met.reply + met.reply_bytes}, now) == SLP_TAKEN);
    }
    slp_config theirs = server.config(mtu);
    theirs.nonce = 0x2222, theirs.connection = 0x20006, theirs.source_port = 9, theirs.destination_port = 7;
    REQUIRE(slp_accept(server.room.data(), &theirs, &met.hello, now, &server.session) == SLP_OK);
    run();
    REQUIRE(slp_state_of(client.session) == SLP_UP);
  }
  // Passes frames until nobody has any, or `pass` says no; lets time go by up to timers.
  void run(uint64_t until = 0) {
    for (int quiet = 0; quiet < 2;) {
      bool any = false;
      for (End* from : {&client, &server}) {
        for (Frame& frame : from->say(now)) {
          any = true;
          if (!pass || pass(from == &client, frame)) (void)(from == &client ? server : client).hear(frame, now);
        }
      }
      quiet = any ? 0 : quiet + 1;
      if (any || now >= until) continue;
      quiet = 0;
      now = std::min(until, std::max(now + 1, std::min(slp_next_timeout(client.session), slp_next_timeout(server.session))));
      slp_on_timer(client.session, now);
      slp_on_timer(server.session, now);
    }
  }
  // Memory of the server's that the client may reach, filled with a pattern.
  uint32_t lend(uint64_t cookie, uint64_t bytes, uint32_t rights) {
    server.memory[cookie].resize(bytes);
    sluice::slp::fill(cookie, 0, server.memory[cookie].data(), bytes);
    uint32_t handle = 0;
    REQUIRE(slp_open_handle(server.session, cookie, bytes, rights, &handle));
    return handle;
  }

  uint64_t now = 1;
  End client, server;
  slp_meeting met{};
  std::function<bool(bool from_client, Frame& frame)> pass;
};

// A frame of the client's next message that has not been delivered.
Frame next_frame(Pair& pair, const std::string& text) {
  REQUIRE(pair.client.send(text));
  std::vector<Frame> said = pair.client.say(pair.now);
  REQUIRE(said.size() == 1);
  return said[0];
}

}  // namespace

TEST_CASE("a session takes less than 64 KiB", "[slp]") { CHECK(slp_session_bytes() < 65'536); }

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
  for (auto [gap, run] : {std::pair<uint16_t, uint16_t>{0, 1}, {1, 0}, {1, 4}, {5, 1}, {65535, 65535}}) {
    Frame lie(SLP_BASE_BYTES + SLP_ACK_BYTES + 4);
    slp_store16(lie.data() + SLP_BASE_BYTES, 1);
    slp_store16(lie.data() + SLP_BASE_BYTES + SLP_ACK_BYTES, gap);
    slp_store16(lie.data() + SLP_BASE_BYTES + SLP_ACK_BYTES + 2, run);
    seal(lie, base);
    CHECK(pair.client.hear(lie, pair.now) == SLP_DROP_ACK);
  }
}

TEST_CASE("frames of another session, port or connection pass nobody", "[slp]") {
  Pair pair;
  Frame honest = next_frame(pair, "m");
  auto changed = [&](auto change) {
    Frame lie(honest);
    slp_base base = base_of(lie);
    change(base);
    seal(lie, base);
    return pair.server.hear(lie, pair.now);
  };
  CHECK(changed([](slp_base& b) { b.session ^= 1; }) == SLP_DROP_SESSION);
  CHECK(changed([](slp_base& b) { b.connection += 1 << 16; }) == SLP_DROP_SESSION);
  CHECK(changed([](slp_base& b) { b.destination_port++; }) == SLP_DROP_SESSION);
  CHECK(changed([](slp_base& b) { b.source_port++; }) == SLP_DROP_SESSION);
  CHECK(changed([](slp_base& b) { b.flags |= SLP_FLAG_PCRC, b.payload_crc = 1; }) == SLP_DROP_PAYLOAD_CRC);
  CHECK(changed([](slp_base& b) { b.number = 0x70000000; }) == SLP_DROP_NUMBER);
  CHECK(pair.server.messages.empty());
  CHECK(pair.server.hear(honest, pair.now) == SLP_TAKEN);
}

TEST_CASE("a NACK ends a session only if it knows both numbers of it", "[slp]") {
  Pair pair;
  Frame frame = next_frame(pair, "m");
  slp_frame in{.data = frame.data(), .present = frame.size(), .bytes = frame.size(), .ce = false, .context = nullptr};
  uint8_t reply[SLP_MAX_HEADER];
  Frame honest(reply, reply + slp_no_session(&in, reply));
  for (int field : {0, 1}) {
    Frame lie(honest);
    slp_base base = base_of(lie);
    if (field == 0) base.session ^= 4;
    else slp_store32(lie.data() + SLP_BASE_BYTES + 4, 77);
    seal(lie, base);
    CHECK(pair.client.hear(lie, pair.now) == SLP_DROP_SESSION);
    CHECK(slp_state_of(pair.client.session) == SLP_UP);
  }
  CHECK(pair.client.hear(honest, pair.now) == SLP_TAKEN);
  CHECK(slp_state_of(pair.client.session) == SLP_DOWN);
  CHECK(slp_why_of(pair.client.session) == SLP_NO_SESSION);
  // It is never answered.
  in = {.data = honest.data(), .present = honest.size(), .bytes = honest.size(), .ce = false, .context = nullptr};
  CHECK(slp_no_session(&in, reply) == 0);
}

TEST_CASE("a user without room holds the sender back, and nothing is lost", "[slp]") {
  Pair pair;
  pair.server.full = true;
  int sent = 0;
  while (sent < 100 && pair.client.send(std::string(1000, static_cast<char>('a' + sent % 26)))) {
    ++sent;
    pair.run(pair.now + kMillisecond);
  }
  // What the sender keeps and what the receiver keeps, and no more.
  CHECK(sent >= 18);
  CHECK(sent <= 21);
  pair.run(pair.now + 2 * kSecond);
  CHECK(pair.server.messages.empty());
  CHECK(slp_state_of(pair.client.session) == SLP_UP);
  pair.server.full = false;
  slp_resume(pair.server.session);
  pair.run(pair.now + kSecond);
  REQUIRE(pair.server.messages.size() == static_cast<size_t>(sent));
  for (int i = 0; i < sent; ++i) CHECK(pair.server.messages[static_cast<size_t>(i)] == std::string(1000, static_cast<char>('a' + i % 26)));
  CHECK(slp_drained(pair.client.session));
}

TEST_CASE("a lone frame is acknowledged within the delay, sixteen at once, a gap at once", "[slp]") {
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
  CHECK(std::count_if(told.begin(), told.end(), [](const Frame& frame) { return type_of(frame) == SLP_ACK && base_of(frame).payload_bytes >= 4; }) == 1);
  pair.run(pair.now + 10 * kMillisecond);
  CHECK(pair.server.messages.size() == 21);
}

TEST_CASE("frames that prove to have been late only teach patience", "[slp]") {
  Pair pair;
  auto round = [&] {
    Frame late = next_frame(pair, "late");
    for (int i = 0; i < 8; ++i) REQUIRE(pair.server.hear(next_frame(pair, "m"), pair.now) == SLP_TAKEN);
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

TEST_CASE("room again is told at once", "[slp]") {
  Pair pair;
  pair.server.full = true;
  while (pair.client.send(std::string(1000, 'a'))) pair.run(pair.now + kMillisecond);
  pair.run(pair.now + 300 * kMillisecond);
  REQUIRE(pair.server.messages.empty());
  pair.server.full = false;
  slp_resume(pair.server.session);
  size_t kept = pair.server.messages.size();
  CHECK(kept > 5);
  pair.run();  // no time goes by
  CHECK(pair.server.messages.size() > kept);
}

TEST_CASE("a sender that waits for credit asks for it, in case the word was lost", "[slp]") {
  Pair pair;
  pair.server.full = true;
  while (pair.client.send(std::string(1000, 'a'))) pair.run(pair.now + kMillisecond);
  pair.run(pair.now + 300 * kMillisecond);
  pair.server.full = false;
  slp_resume(pair.server.session);
  (void)pair.server.say(pair.now);  // is lost
  size_t kept = pair.server.messages.size();
  pair.run(pair.now + 250 * kMillisecond);
  CHECK(pair.server.messages.size() > kept);
}

TEST_CASE("pieces of a stream that overlap give each byte once", "[slp]") {
  Pair pair;
  const std::string text = "what is cut in one way may come in another";
  Frame whole = next_frame(pair, text);
  slp_base base = base_of(whole);
  const size_t head = SLP_BASE_BYTES + SLP_EAGER_BYTES;
  // [6, 30), [0, 20), then all.
  for (auto [from, to] : {std::pair<size_t, size_t>{6, 30}, {0, 20}, {0, whole.size() - head}}) {
    Frame part(whole.begin(), whole.begin() + static_cast<long>(head));
    part.insert(part.end(), whole.begin() + static_cast<long>(head + from), whole.begin() + static_cast<long>(head + to));
    slp_store32(part.data() + SLP_BASE_BYTES, slp_load32(whole.data() + SLP_BASE_BYTES) + static_cast<uint32_t>(from));
    base.payload_bytes = static_cast<uint16_t>(to - from);
    ++base.number;
    seal(part, base);
    CHECK(pair.server.hear(part, pair.now) == SLP_TAKEN);
  }
  CHECK(pair.server.messages == std::vector<std::string>{text});
}

TEST_CASE("EAGER beyond the credit is not taken and not acknowledged", "[slp]") {
  Pair pair;
  Frame lie = next_frame(pair, "m");
  slp_base base = base_of(lie);
  slp_store32(lie.data() + SLP_BASE_BYTES, SLP_STREAM_BYTES - 4);
  seal(lie, base);
  CHECK(pair.server.hear(lie, pair.now) == SLP_DROP_ROOM);
}

TEST_CASE("pulls outside a handle, of a closed one or without the right end with the reason", "[slp]") {
  Pair pair;
  uint32_t readable = pair.lend(1, 5000, SLP_READ), writable = pair.lend(2, 5000, SLP_WRITE), closed = pair.lend(3, 5000, SLP_READ);
  slp_close_handle(pair.server.session, closed);
  struct Try {
    uint32_t handle;
    uint64_t offset, length;
    slp_status expected;
  };
  uint64_t cookie = 100;
  for (Try t : {Try{readable, 4000, 1001, SLP_BAD_RANGE}, Try{readable, 5001, 1, SLP_BAD_RANGE}, Try{readable, UINT64_MAX - 10, 5, SLP_BAD_RANGE},
                Try{writable, 0, 10, SLP_NO_RIGHT}, Try{closed, 0, 10, SLP_BAD_HANDLE}, Try{readable + (1 << 16), 0, 10, SLP_BAD_HANDLE},
                Try{0xffff, 0, 10, SLP_BAD_HANDLE}, Try{readable, 0, 5000, SLP_OK}}) {
    pair.client.memory[++cookie].resize(t.length > 5000 ? 5000 : t.length);
    REQUIRE(slp_pull(pair.client.session, t.handle, t.offset, t.length, cookie) == SLP_OK);
    pair.run(pair.now + 10 * kMillisecond);
    REQUIRE(!pair.client.ended.empty());
    CHECK(pair.client.ended.back() == std::pair{cookie, t.expected});
  }
  CHECK(sluice::slp::matches(1, pair.client.memory[cookie].data(), 5000));
  CHECK(pair.client.node.pulling == 0);
  CHECK(slp_pull(pair.client.session, readable, UINT64_MAX, 2, 9) == SLP_BAD_RANGE);
  CHECK(slp_pull(pair.client.session, readable, 0, 0, 9) == SLP_BAD_RANGE);
}

TEST_CASE("a push arrives whole, then the notice, then its end", "[slp]") {
  Pair pair;
  uint32_t handle = pair.lend(5, 100'000, SLP_WRITE), notice = 77;
  pair.client.memory[6].resize(90'001);
  sluice::slp::fill(6, 0, pair.client.memory[6].data(), 90'001);
  REQUIRE(slp_push(pair.client.session, handle, 9'999, 90'001, 6, &notice) == SLP_OK);
  pair.run(pair.now + 100 * kMillisecond);
  CHECK(pair.server.notices == std::vector<uint32_t>{77});
  REQUIRE(pair.client.ended.size() == 1);
  CHECK(pair.client.ended[0] == std::pair{uint64_t{6}, SLP_OK});
  CHECK(sluice::slp::matches(6, pair.server.memory[5].data() + 9'999, 90'001));
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
    slp_store32(lie.data() + SLP_BASE_BYTES + 8, slp_load32(data.data() + SLP_BASE_BYTES + 8) ^ transfer_change);
    seal(lie, base);
    return pair.client.hear(lie, pair.now);
  };
  CHECK(at(1) == SLP_DROP_CONTENT);
  CHECK(at(11 * SLP_UNIT_BYTES) == SLP_DROP_RANGE);
  CHECK(at(10 * SLP_UNIT_BYTES) == SLP_DROP_RANGE);  // longer than what is left
  CHECK(at(uint64_t{SLP_UNIT_BYTES} << 40) == SLP_DROP_RANGE);
  CHECK(at(0, 0x7f) == SLP_DROP_CONTENT);
  CHECK(at(0, SLP_TRANSFER_PUSH) == SLP_DROP_TRANSFER);
  CHECK(pair.client.placed == 0);
  CHECK(at(0) == SLP_TAKEN);
  CHECK(pair.client.placed == SLP_UNIT_BYTES);
  pair.pass = nullptr;
  pair.run(pair.now + kSecond);
  CHECK(pair.client.placed == 10 * SLP_UNIT_BYTES + 5);
  CHECK(sluice::slp::matches(1, pair.client.memory[2].data(), 10 * SLP_UNIT_BYTES + 5));
}

TEST_CASE("DATA of a push beyond its window is refused, and nothing of a cancelled one is placed", "[slp]") {
  Pair pair;
  constexpr uint64_t kUnits = 1000, kBytes = kUnits * SLP_UNIT_BYTES;
  uint32_t handle = pair.lend(1, kBytes, SLP_WRITE);
  pair.client.memory[2].resize(kBytes);
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

TEST_CASE("what finds no room in the control stream goes later, in order", "[slp]") {
  Pair pair;
  uint32_t large = pair.lend(1, 1'000'000, SLP_READ), handle = pair.lend(2, 5000, SLP_READ);
  pair.client.memory[3].resize(1'000'000);
  pair.pass = [](bool, Frame&) { return false; };
  // Two PULLs and 83 with their DONE leave 40 bytes of 4,096: a PULL fits, its DONE does not.
  for (uint64_t cookie : {5, 6}) {
    pair.client.memory[cookie].resize(5000);
    REQUIRE(slp_pull(pair.client.session, handle, 0, 5000, cookie) == SLP_OK);
  }
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
  REQUIRE(pair.client.ended.size() == 3);
  CHECK(pair.client.ended[2] == std::pair{uint64_t{4}, SLP_OK});
  CHECK(sluice::slp::matches(2, pair.client.memory[4].data(), 5000));
}

TEST_CASE("after a handle is closed nothing of it is read or written", "[slp]") {
  for (bool pull : {true, false}) {
    Pair pair;
    constexpr uint64_t kBytes = 3'000'000;
    uint32_t handle = pair.lend(1, kBytes, SLP_READ | SLP_WRITE);
    pair.client.memory[2].resize(kBytes);
    REQUIRE((pull ? slp_pull(pair.client.session, handle, 0, kBytes, 2) : slp_push(pair.client.session, handle, 0, kBytes, 2, nullptr)) == SLP_OK);
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
  CHECK(sluice::slp::matches(1, pair.client.memory[2].data(), 500'000));
  CHECK(slp_frame_bytes(pair.server.session) <= 2250);  // of DATA one unit fits, and no two
  CHECK(slp_counters_of(pair.server.session)->frames_halved >= 2);
}

TEST_CASE("an idle peer is asked each second, and given up three seconds after its last word", "[slp]") {
  Pair pair;
  pair.run(pair.now + 10 * kSecond);
  CHECK(slp_state_of(pair.client.session) == SLP_UP);
  CHECK(slp_state_of(pair.server.session) == SLP_UP);
  pair.pass = [&](bool, Frame&) { return false; };
  uint64_t heard = pair.now, ended = 0;
  while (ended == 0 && pair.now < heard + 20 * kSecond) {
    pair.run(pair.now + 50 * kMillisecond);
    if (slp_state_of(pair.client.session) == SLP_DOWN) ended = pair.now;
  }
  CHECK(slp_why_of(pair.client.session) == SLP_SILENT);
  CHECK(ended - heard >= 2 * kSecond);
  CHECK(ended - heard <= 4200 * kMillisecond);
}

TEST_CASE("what breaks the protocol ends the session and says BYE", "[slp]") {
  struct Lie {
    uint8_t stream, kind;
    uint32_t length;
  };
  for (Lie lie : {Lie{SLP_MESSAGES, 9, 1}, Lie{SLP_MESSAGES, SLP_RECORD_PULL, 32}, Lie{SLP_MESSAGES, SLP_RECORD_MESSAGE, 0xffffff},
                  Lie{SLP_MESSAGES, SLP_RECORD_RTS, 3}, Lie{SLP_CONTROL, SLP_RECORD_MESSAGE, 1}, Lie{SLP_CONTROL, SLP_RECORD_DONE, 7},
                  Lie{SLP_CONTROL, SLP_RECORD_PULL, 31}, Lie{SLP_CONTROL, SLP_RECORD_DONE, 8}, Lie{SLP_CONTROL, SLP_RECORD_GRANT, 16}}) {
    INFO("stream " << int{lie.stream} << " kind " << int{lie.kind} << " length " << lie.length);
    Pair pair;
    slp_base base = base_of(next_frame(pair, "m"));
    base.payload_bytes = static_cast<uint16_t>(SLP_RECORD_BYTES + std::min(lie.length, 40u));
    Frame frame(SLP_BASE_BYTES + SLP_EAGER_BYTES + base.payload_bytes, 0xee);
    slp_store32(frame.data() + SLP_BASE_BYTES, 0);
    slp_store32(frame.data() + SLP_BASE_BYTES + 4, lie.stream);
    slp_store32(frame.data() + SLP_BASE_BYTES + SLP_EAGER_BYTES, lie.length | static_cast<uint32_t>(lie.kind) << 24);
    seal(frame, base);
    (void)pair.server.hear(frame, pair.now);
    CHECK(slp_state_of(pair.server.session) == SLP_DOWN);
    CHECK(slp_why_of(pair.server.session) == SLP_BROKEN);
    std::vector<Frame> said = pair.server.say(pair.now);
    REQUIRE(said.size() == 1);
    CHECK(type_of(said[0]) == SLP_BYE);
    CHECK(pair.client.hear(said[0], pair.now) == SLP_TAKEN);
    CHECK(slp_why_of(pair.client.session) == SLP_CLOSED);
  }
}

TEST_CASE("a listener keeps nothing of a HELLO, and believes a cookie from its own address alone", "[slp]") {
  slp_listener listener{.secret = {9}, .port = 9, .mtu = 1452};
  Pair pair;  // whose own HELLO is looked at below
  slp_hello hello = pair.met.hello;
  auto ask = [&](uint64_t now, const char* address, uint64_t cookie, uint64_t nonce) {
    Frame frame(SLP_BASE_BYTES + SLP_HELLO_BYTES);
    slp_hello asked = hello;
    asked.cookie = cookie;
    asked.nonce = nonce;
    slp_encode_hello(frame.data() + SLP_BASE_BYTES, &asked);
    slp_base base{};
    base.type = SLP_HELLO, base.source_port = 7, base.destination_port = 9;
    seal(frame, base);
    slp_frame in{.data = frame.data(), .present = frame.size(), .bytes = frame.size(), .ce = false, .context = nullptr};
    slp_meeting met;
    slp_answer answer = slp_listen(&listener, now, reinterpret_cast<const uint8_t*>(address), 6, &in, &met);
    slp_hello retry{};
    if (answer == SLP_LISTEN_REPLY) slp_decode_hello(met.reply + SLP_BASE_BYTES, &retry);
    return std::pair{answer, retry.cookie};
  };
  uint64_t cookie = ask(kSecond, "aaaaaa", 0, 5).second;
  REQUIRE(cookie != 0);
  CHECK(ask(kSecond, "aaaaaa", cookie, 5).first == SLP_LISTEN_ACCEPT);
  CHECK(ask(8 * kSecond, "aaaaaa", cookie, 5).first == SLP_LISTEN_ACCEPT);
  CHECK(ask(kSecond, "bbbbbb", cookie, 5).first == SLP_LISTEN_REPLY);
  CHECK(ask(kSecond, "aaaaaa", cookie, 6).first == SLP_LISTEN_REPLY);
  CHECK(ask(kSecond, "aaaaaa", cookie ^ 2, 5).first == SLP_LISTEN_REPLY);
  CHECK(ask(17 * kSecond, "aaaaaa", cookie, 5).first == SLP_LISTEN_REPLY);
  CHECK(ask(kSecond, "aaaaaa", cookie, 0).first == SLP_LISTEN_DROP);
  hello.min_version = hello.max_version = 2;
  CHECK(ask(kSecond, "aaaaaa", cookie, 5).first == SLP_LISTEN_REPLY);
}

TEST_CASE("bytes at random never do anything but be dropped", "[slp]") {
  auto pair = std::make_unique<Pair>();
  Frame honest = next_frame(*pair, "m");
  uint64_t state = 12345;
  auto random = [&] { return state = state * 6364136223846793005u + 1442695040888963407u, state >> 33; };
  for (int i = 0; i < 200'000; ++i) {
    Frame frame(honest);
    if (i % 2 == 0) frame.resize(random() % 120);
    for (uint64_t changes = 1 + random() % 6; changes > 0 && !frame.empty(); --changes) frame[random() % frame.size()] = static_cast<uint8_t>(random());
    // With a good checksum half of the time: then what lies behind it is looked at.
    if (frame.size() >= SLP_BASE_BYTES && i % 4 < 2) {
      slp_base base{};
      base.type = frame[0] & 31, base.flags = frame[1], base.source_port = 7, base.destination_port = 9;
      base.payload_bytes = static_cast<uint16_t>(frame.size() - SLP_BASE_BYTES);
      base.connection = 0x20006, base.number = slp_load32(frame.data() + 12) % 50, base.ack = slp_load32(frame.data() + 16) % 8;
      base.session = slp_session_tag(0x1111, 0x2222);
      uint32_t extension = slp_extension_bytes(base.type);
      if (frame.size() >= SLP_BASE_BYTES + extension) {
        base.payload_bytes = static_cast<uint16_t>(frame.size() - SLP_BASE_BYTES - extension);
        seal(frame, base);
      }
    }
    (void)pair->server.hear(frame, pair->now += 100);
    if (slp_state_of(pair->server.session) == SLP_DOWN) pair = std::make_unique<Pair>();
  }
  SUCCEED("nothing read or wrote where it must not: the sanitizers' word");
}
