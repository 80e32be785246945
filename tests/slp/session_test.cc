// A session from its HELLO to its end, and who may end it.
#include <catch2/catch.hpp>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "tests/slp/table.h"

namespace sluice::slp::table {

TEST_CASE("a session takes less than 64 KiB", "[slp]") { CHECK(slp_session_bytes() < 65'536); }

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
  CHECK(changed([](slp_base& b) { b.flags |= SLP_FLAG_PCRC, b.payload_crc = 1; }) ==
        SLP_DROP_PAYLOAD_CRC);
  CHECK(changed([](slp_base& b) { b.number = 0x70000000; }) == SLP_DROP_NUMBER);
  CHECK(pair.server.messages.empty());
  CHECK(pair.server.hear(honest, pair.now) == SLP_TAKEN);
}

TEST_CASE("a NACK ends a session only if it knows both numbers of it", "[slp]") {
  Pair pair;
  Frame frame = next_frame(pair, "m");
  slp_frame in = come(frame);
  uint8_t reply[SLP_MAX_HEADER];
  Frame honest(reply, reply + slp_no_session(&in, reply));
  for (int field : {0, 1}) {
    Frame lie(honest);
    slp_base base = base_of(lie);
    if (field == 0)
      base.session ^= 4;
    else
      slp_store32(lie.data() + SLP_BASE_BYTES + 4, 77);
    seal(lie, base);
    CHECK(pair.client.hear(lie, pair.now) == SLP_DROP_SESSION);
    CHECK(slp_state_of(pair.client.session) == SLP_UP);
  }
  CHECK(pair.client.hear(honest, pair.now) == SLP_TAKEN);
  CHECK(slp_state_of(pair.client.session) == SLP_DOWN);
  CHECK(slp_why_of(pair.client.session) == SLP_NO_SESSION);
  // It is never answered.
  in = come(honest);
  CHECK(slp_no_session(&in, reply) == 0);
}

TEST_CASE("an idle peer is asked each second, and given up three seconds after its last word",
          "[slp]") {
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

TEST_CASE("among a flood one HELLO in 32 is enough, and a RETRY is a word of the peer", "[slp]") {
  End client;
  slp_config config = client.config(1452);
  config.nonce = 0x1111, config.connection = 0x10005, config.source_port = 7,
  config.destination_port = 9;
  client.session = slp_connect(client.room.data(), &config, 1);
  slp_listener listener{
      .secret = {1}, .port = 9, .mtu = 1452, .cipher = nullptr, .cipher_user = nullptr};
  uint64_t now = 1, said = 0, retried = 0;
  bool accepted = false;
  // Hears every 32nd HELLO, if it hears any.
  auto run_until = [&](uint64_t limit, bool hears) {
    while (slp_state_of(client.session) == SLP_CONNECTING && !accepted && now < limit) {
      for (Frame& hello : client.say(now)) {
        if (++said % 32 != 0 || !hears) continue;
        slp_frame in = come(hello);
        slp_meeting met;
        accepted = slp_listen(&listener, now, reinterpret_cast<const uint8_t*>("client"), 6, &in,
                              &met) == SLP_LISTEN_ACCEPT;
        if (accepted) continue;
        retried = now;
        CHECK(client.hear({met.reply, met.reply + met.reply_bytes}, now) == SLP_TAKEN);
      }
      now = slp_next_timeout(client.session);
      slp_on_timer(client.session, now);
    }
  };
  CHECK_FALSE(slp_was_heard(client.session));
  SECTION("two are heard within the dead time") {
    run_until(3 * kSecond, true);
    CHECK(accepted);
    CHECK(slp_was_heard(client.session));
  }
  SECTION("the dead time counts from the RETRY") {
    run_until(800 * kMillisecond, true);
    REQUIRE(retried != 0);
    CHECK_FALSE(accepted);
    run_until(10 * kSecond, false);
    CHECK(slp_state_of(client.session) == SLP_DOWN);
    CHECK(slp_why_of(client.session) == SLP_SILENT);
    CHECK(now == retried + 3 * kSecond);
  }
}

TEST_CASE("what breaks the protocol ends the session and says BYE", "[slp]") {
  struct Lie {
    uint8_t stream, kind;
    uint32_t length;
  };
  for (Lie lie : {Lie{SLP_MESSAGES, 9, 1}, Lie{SLP_MESSAGES, SLP_RECORD_PULL, 32},
                  Lie{SLP_MESSAGES, SLP_RECORD_MESSAGE, 0xffffff},
                  Lie{SLP_MESSAGES, SLP_RECORD_RTS, 3}, Lie{SLP_CONTROL, SLP_RECORD_MESSAGE, 1},
                  Lie{SLP_CONTROL, SLP_RECORD_DONE, 7}, Lie{SLP_CONTROL, SLP_RECORD_PULL, 31},
                  Lie{SLP_CONTROL, SLP_RECORD_DONE, 8}, Lie{SLP_CONTROL, SLP_RECORD_GRANT, 16}}) {
    INFO("stream " << int{lie.stream} << " kind " << int{lie.kind} << " length " << lie.length);
    Pair pair;
    slp_base base = base_of(next_frame(pair, "m"));
    base.payload_bytes = static_cast<uint16_t>(SLP_RECORD_BYTES + std::min(lie.length, 40u));
    Frame frame(SLP_BASE_BYTES + SLP_EAGER_BYTES + base.payload_bytes, 0xee);
    slp_store32(frame.data() + SLP_BASE_BYTES, 0);
    slp_store32(frame.data() + SLP_BASE_BYTES + 4, lie.stream);
    slp_store32(frame.data() + SLP_BASE_BYTES + SLP_EAGER_BYTES,
                lie.length | static_cast<uint32_t>(lie.kind) << 24);
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

TEST_CASE("a listener keeps nothing of a HELLO, and believes a cookie from its own address alone",
          "[slp]") {
  slp_listener listener{
      .secret = {9}, .port = 9, .mtu = 1452, .cipher = nullptr, .cipher_user = nullptr};
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
    slp_frame in = come(frame);
    slp_meeting met;
    slp_answer answer =
        slp_listen(&listener, now, reinterpret_cast<const uint8_t*>(address), 6, &in, &met);
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
  auto random = [&] {
    return state = state * 6364136223846793005u + 1442695040888963407u, state >> 33;
  };
  for (int i = 0; i < 200'000; ++i) {
    Frame frame(honest);
    if (i % 2 == 0) frame.resize(random() % 120);
    for (uint64_t changes = 1 + random() % 6; changes > 0 && !frame.empty(); --changes)
      frame[random() % frame.size()] = static_cast<uint8_t>(random());
    // With a good checksum half of the time: then what lies behind it is looked at.
    if (frame.size() >= SLP_BASE_BYTES && i % 4 < 2) {
      slp_base base{};
      base.type = frame[0] & 31, base.flags = frame[1], base.source_port = 7,
      base.destination_port = 9;
      base.payload_bytes = static_cast<uint16_t>(frame.size() - SLP_BASE_BYTES);
      base.connection = 0x20006, base.number = slp_load32(frame.data() + 12) % 50,
      base.ack = slp_load32(frame.data() + 16) % 8;
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

TEST_CASE("a million frames whose sender guesses what he cannot see change nothing",
          "[slp][forged]") {
  Pair pair;
  // He knows ports and type, and that numbers are small; he guesses in turn the session, the
  // connection, and both.
  REQUIRE(pair.client.send("here"));
  Frame model = pair.client.say(pair.now).at(0);
  const slp_base real = base_of(model);
  uint64_t taken = 0, chance = 1;
  auto random = [&] {
    chance = chance * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
    return static_cast<uint32_t>(chance >> 32);
  };
  constexpr uint32_t kFrames = 1 << 20;
  Frame forged(model);
  for (uint32_t i = 0; i < kFrames; ++i) {
    slp_base base = real;
    base.type = i % 3 == 0 ? SLP_EAGER : i % 3 == 1 ? SLP_PING : SLP_BYE;
    base.payload_bytes = base.type == SLP_EAGER ? real.payload_bytes : 0;
    base.number = real.number + i % 64;
    base.flags &= static_cast<uint8_t>(~SLP_FLAG_ACK);
    if (i % 4 != 0) base.session = i % 4 == 1 ? i : i % 4 == 2 ? real.session ^ (i | 1) : random();
    if (i % 4 == 0 || i % 8 > 4)
      base.connection = i % 16 == 0 ? (i % 64) | (1 + i / 64 % 64) << 16 : random();
    if (base.session == real.session && base.connection == real.connection) base.session ^= 1;
    slp_encode_base(forged.data(), &base);
    slp_frame in = come(forged);
    taken += slp_on_frame(pair.server.session, pair.now, &in) == SLP_TAKEN;
  }
  CHECK(taken == 0);
  CHECK(pair.server.dropped(SLP_DROP_SESSION) == kFrames);
  CHECK(pair.server.messages.empty());
  CHECK(slp_state_of(pair.server.session) == SLP_UP);
  CHECK(pair.server.hear(model, pair.now) == SLP_TAKEN);
  CHECK(pair.server.messages == std::vector<std::string>{"here"});
}

}  // namespace sluice::slp::table
