// Sealed sessions with the real cipher: who gets in, what opens, and what a stranger can do.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <sluice/l2/cipher.h>

#include "tests/slp/table.h"

namespace sluice::slp::table {
namespace {

std::unique_ptr<l2::Cipher> cipher(const std::string& secret = "correct horse battery staple") {
  auto made = l2::Cipher::open({reinterpret_cast<const uint8_t*>(secret.data()), secret.size()});
  REQUIRE(made.ok());
  return std::move(*made);
}

struct Ciphers {
  std::unique_ptr<l2::Cipher> client = cipher(), listener = cipher(), server = cipher();
  Sealing sealing(uint8_t epoch_bits) {
    return {l2::Cipher::calls(), client.get(), listener.get(), server.get(), epoch_bits};
  }
};

// Before the pair, which uses them.
struct Held {
  Ciphers ciphers;
};
struct SealedPair : Held, Pair {
  explicit SealedPair(uint8_t epoch_bits = SLP_EPOCH_BITS)
      : Pair(1452, 1 << 20, ciphers.sealing(epoch_bits)) {}
};

bool sealed(const Frame& frame) { return (frame[1] & SLP_FLAG_SEALED) != 0; }

// What a session is, but for its counters.
std::vector<uint8_t> inside(const slp_session* session) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(session);
  const auto* counters = reinterpret_cast<const uint8_t*>(slp_counters_of(session));
  std::vector<uint8_t> all(bytes, counters);
  all.insert(all.end(), counters + sizeof(slp_counters), bytes + slp_session_bytes());
  return all;
}

}  // namespace

TEST_CASE("messages, pulls and pushes cross a sealed session, and no frame shows what they say",
          "[slp][seal]") {
  SealedPair pair;
  const std::string text = "what nobody else shall read";
  std::vector<uint8_t> secret(60'000, 'S');
  uint32_t readable = pair.lend(1, 60'000, SLP_READ), writable = pair.lend(2, 60'000, SLP_WRITE);
  pair.server.memory[1] = secret;
  pair.client.memory[3].resize(60'000);
  pair.client.memory[4] = secret;
  uint64_t frames = 0;
  pair.pass = [&](bool, Frame& frame) {
    ++frames;
    CHECK(sealed(frame));
    CHECK(frame.size() <= 1452);
    CHECK(std::search(frame.begin(), frame.end(), text.begin(), text.end()) == frame.end());
    CHECK(std::search(frame.begin(), frame.end(), secret.begin(), secret.begin() + 16) ==
          frame.end());
    return true;
  };
  REQUIRE(pair.client.send(text));
  REQUIRE(slp_pull(pair.client.session, readable, 0, 60'000, 3) == SLP_OK);
  REQUIRE(slp_push(pair.client.session, writable, 0, 60'000, 4, nullptr) == SLP_OK);
  pair.run(pair.now + kSecond);
  CHECK(frames > 90);
  CHECK(pair.server.messages == std::vector<std::string>{text});
  // What is long is not printed.
  CHECK((pair.client.memory[3] == secret));
  CHECK((pair.server.memory[2] == secret));
  CHECK(pair.client.dropped(SLP_DROP_FORGED) + pair.server.dropped(SLP_DROP_FORGED) == 0);
}

TEST_CASE(
    "a sealed frame that differs in any bit is forged, and changes nothing; but any hop may mark "
    "congestion",
    "[slp][seal]") {
  SealedPair pair;
  Frame honest = next_frame(pair, "m");
  std::vector<uint8_t> before = inside(pair.server.session);
  uint64_t tried = 0;
  for (size_t bit = 0; bit < 8 * honest.size(); ++bit) {
    if (bit == 8 || (bit >= 8 * 28 && bit < 8 * 32)) continue;  // CE; the checksum
    Frame lie(honest);
    lie[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    if (lie.size() < SLP_BASE_BYTES + slp_extension_bytes(type_of(lie))) continue;
    slp_stamp_base(lie.data());
    CHECK(pair.server.hear(lie, pair.now) != SLP_TAKEN);
    ++tried;
  }
  CHECK(tried > 400);
  // Other numbers may have needed other keys, and that is all.
  if (slp_counters_of(pair.server.session)->keys == 1) CHECK(inside(pair.server.session) == before);
  CHECK(pair.server.dropped(SLP_DROP_FORGED) > 100);
  CHECK(pair.server.messages.empty());
  honest[1] |= SLP_FLAG_CE;
  CHECK(pair.server.hear(honest, pair.now) == SLP_TAKEN);
  CHECK(slp_counters_of(pair.server.session)->marked == 1);
  CHECK(pair.server.messages.size() == 1);
}

TEST_CASE("a sealed frame opens once, used or not", "[slp][seal]") {
  SealedPair pair;
  Frame first = next_frame(pair, "m");
  CHECK(pair.server.hear(first, pair.now) == SLP_TAKEN);
  std::vector<uint8_t> before = inside(pair.server.session);
  CHECK(pair.server.hear(first, pair.now) == SLP_DROP_REPEATED);
  CHECK(inside(pair.server.session) == before);
  // DATA of a push that has not been told is not used: it comes again, but not from a stranger.
  uint32_t handle = pair.lend(1, 5000, SLP_WRITE);
  pair.client.memory[2].resize(5000);
  REQUIRE(slp_push(pair.client.session, handle, 0, 5000, 2, nullptr) == SLP_OK);
  std::vector<Frame> said = pair.client.say(pair.now);
  REQUIRE(said.size() >= 2);
  CHECK(pair.server.hear(said.back(), pair.now) == SLP_DROP_TRANSFER);
  pair.now += kMillisecond;
  slp_on_timer(pair.server.session, pair.now);
  before = inside(pair.server.session);
  CHECK(pair.server.hear(said.back(), pair.now) == SLP_DROP_REPEATED);
  CHECK(inside(pair.server.session) == before);
  pair.run(pair.now + kSecond);
  CHECK(pair.server.placed == 5000);
}

TEST_CASE("keys last for as many frames as both have agreed, and frames say which it is",
          "[slp][seal]") {
  SealedPair pair(SLP_LEAST_EPOCH_BITS);
  Frame old = next_frame(pair, "late");
  CHECK((old[1] & SLP_FLAG_PHASE) == 0);
  bool phases[2] = {};
  pair.pass = [&](bool, Frame& frame) {
    uint32_t number = slp_load32(frame.data() + 12);
    bool odd = (frame[1] & SLP_FLAG_PHASE) != 0;
    CHECK(odd == ((number >> SLP_LEAST_EPOCH_BITS & 1) != 0));
    phases[odd] = true;
    return true;
  };
  for (int i = 0; i < 200; ++i) {
    REQUIRE(pair.client.send("x"));
    pair.run(pair.now + kMillisecond);
  }
  CHECK(phases[0]);
  CHECK(phases[1]);
  CHECK(pair.server.messages.size() == 201);
  CHECK(slp_counters_of(pair.server.session)->keys >= 5);
  // The key of its epoch is made again.
  CHECK(pair.server.hear(old, pair.now) == SLP_TAKEN);
  CHECK(pair.server.hear(old, pair.now) == SLP_DROP_REPEATED);
  CHECK(pair.server.dropped(SLP_DROP_FORGED) == 0);
}

TEST_CASE("after more lost frames than a key seals both go on", "[slp][seal]") {
  SealedPair pair(SLP_LEAST_EPOCH_BITS);
  uint32_t handle = 0;
  pair.client.memory[1].resize(400'000);
  REQUIRE(slp_open_handle(pair.client.session, 1, 400'000, SLP_WRITE, &handle));
  pair.server.memory[2].assign(400'000, 'd');
  REQUIRE(slp_push(pair.server.session, handle, 0, 400'000, 2, nullptr) == SLP_OK);
  uint32_t theirs = pair.lend(3, 400'000, SLP_WRITE);
  pair.client.memory[4].assign(400'000, 'e');
  REQUIRE(slp_push(pair.client.session, theirs, 0, 400'000, 4, nullptr) == SLP_OK);
  // All that the client says is lost, which is much, since it hears each other frame only.
  uint64_t lost = 0, seen = 0;
  pair.pass = [&](bool from_client, Frame&) {
    lost += from_client;
    return !from_client && (++seen % 2 == 0 || seen < 3);
  };
  for (int i = 0; i < 270 && lost < 3 << SLP_LEAST_EPOCH_BITS; ++i) {
    (void)pair.client.send("m");
    (void)pair.server.send("y");
    (void)slp_pull(pair.client.session, 99, 0, 1, 50);  // of no handle
    pair.run(pair.now + 10 * kMillisecond);
  }
  CHECK(lost >= 2 << SLP_LEAST_EPOCH_BITS);
  pair.pass = nullptr;
  pair.run(pair.now + 2 * kSecond);
  CHECK(slp_state_of(pair.server.session) == SLP_UP);
  CHECK(slp_drained(pair.client.session));
  CHECK(slp_drained(pair.server.session));
  // What is long is not printed.
  CHECK((pair.client.memory[1] == pair.server.memory[2]));
  CHECK((pair.server.memory[3] == pair.client.memory[4]));
}

TEST_CASE("a frame is sealed once, whatever asks for it", "[slp][seal]") {
  SealedPair pair;
  REQUIRE(pair.client.send("m"));
  slp_tx tx;
  REQUIRE(slp_poll_tx(pair.client.session, pair.now, &tx));
  Frame frame(2000), again(2000);
  CHECK(slp_seal_tx(pair.client.session, &tx, nullptr, 0, frame.data()) > 0);
  CHECK(slp_seal_tx(pair.client.session, &tx, nullptr, 0, again.data()) == 0);
  CHECK(again == Frame(2000));
}

TEST_CASE("nothing in the clear ends or moves a sealed session", "[slp][seal]") {
  SealedPair pair;
  Frame honest = next_frame(pair, "m");
  slp_base base = base_of(honest);
  base.flags &= static_cast<uint8_t>(~(SLP_FLAG_SEALED | SLP_FLAG_PHASE));
  std::vector<uint8_t> before = inside(pair.server.session);
  for (uint8_t type : {SLP_BYE, SLP_PING, SLP_EAGER, SLP_ACK, SLP_DATA}) {
    Frame lie(SLP_BASE_BYTES + slp_extension_bytes(type) + 8);
    base.type = type, base.payload_bytes = type == SLP_EAGER ? 8 : 0;
    seal(lie, base);
    CHECK(pair.server.hear(lie, pair.now) == SLP_DROP_UNSEALED);
  }
  CHECK(inside(pair.server.session) == before);
  // A NACK that knows all the numbers, to the client.
  Frame nack(SLP_BASE_BYTES + SLP_NACK_BYTES);
  slp_base said{};
  said.type = SLP_NACK, said.source_port = 9, said.destination_port = 7,
  said.session = base.session;
  slp_store16(nack.data() + SLP_BASE_BYTES, SLP_NO_SESSION);
  slp_store32(nack.data() + SLP_BASE_BYTES + 4, base.connection);
  seal(nack, said);
  before = inside(pair.client.session);
  CHECK(pair.client.hear(nack, pair.now) == SLP_DROP_UNSEALED);
  CHECK(inside(pair.client.session) == before);
  // And nobody answers a sealed frame with one.
  slp_frame in = come(honest);
  uint8_t reply[SLP_MAX_HEADER];
  CHECK(slp_no_session(&in, reply) == 0);
}

TEST_CASE("an old HELLO makes a session that nobody confirms", "[slp][seal]") {
  SealedPair pair;
  CHECK(slp_confirmed(pair.server.session));
  Ciphers fresh;
  End second;
  slp_config config = second.config(1452);
  config.nonce = 0x3333, config.connection = 0x30007, config.source_port = 9,
  config.destination_port = 7;
  config.cipher = l2::Cipher::calls(), config.cipher_user = fresh.server.get();
  REQUIRE(slp_accept(second.room.data(), &config, &pair.met.hello, pair.now, &second.session) ==
          SLP_OK);
  for (Frame& answer : second.say(pair.now))
    CHECK(pair.client.hear(answer, pair.now) == SLP_DROP_STATE);
  // Not by frames of the session that lives, wherever they are sent to.
  Frame honest = next_frame(pair, "m");
  slp_base base = base_of(honest);
  base.connection = 0x30007, base.session = slp_session_tag(0x1111, 0x3333);
  seal(honest, base);
  CHECK(second.hear(honest, pair.now) == SLP_DROP_FORGED);
  CHECK_FALSE(slp_confirmed(second.session));
  for (uint64_t end = pair.now + 10 * kSecond;
       pair.now < end && slp_state_of(second.session) == SLP_UP; pair.now += 50 * kMillisecond) {
    slp_on_timer(second.session, pair.now);
    second.say(pair.now);
  }
  CHECK(slp_why_of(second.session) == SLP_SILENT);
}

TEST_CASE("a HELLO without the secret is refused, with the reason", "[slp][seal]") {
  auto ours = cipher(), theirs = cipher("another secret altogether");
  struct Try {
    l2::Cipher *client, *listener;
    slp_status told, found;  // what the listener says; what the client believes of it
    slp_drop counted;
  };
  for (Try t :
       {Try{theirs.get(), ours.get(), SLP_NOT_AUTHENTIC, SLP_NOT_AUTHENTIC, SLP_DROP_FORGED},
        Try{nullptr, ours.get(), SLP_NEEDS_KEY, SLP_NEEDS_KEY, SLP_DROP_UNSEALED},
        Try{theirs.get(), nullptr, SLP_HAS_NO_KEY, SLP_HAS_NO_KEY, SLP_DROP_UNSEALED}}) {
    INFO("status " << t.told);
    End client;
    slp_config config = client.config(1452);
    config.nonce = 0x1111, config.connection = 0x10005, config.source_port = 7,
    config.destination_port = 9;
    if (t.client != nullptr) config.cipher = l2::Cipher::calls(), config.cipher_user = t.client;
    client.session = slp_connect(client.room.data(), &config, 1);
    slp_listener listener{.secret = {1},
                          .port = 9,
                          .mtu = 1452,
                          .cipher = t.listener != nullptr ? l2::Cipher::calls() : nullptr,
                          .cipher_user = t.listener};
    uint64_t now = 1;
    bool nacked = false;
    while (slp_state_of(client.session) == SLP_CONNECTING && now < 10 * kSecond) {
      for (Frame& hello : client.say(now)) {
        slp_frame in = come(hello);
        slp_meeting met;
        REQUIRE(slp_listen(&listener, now, reinterpret_cast<const uint8_t*>("client"), 6, &in,
                           &met) == SLP_LISTEN_REPLY);
        CHECK(met.why == t.counted);
        Frame reply(met.reply, met.reply + met.reply_bytes);
        REQUIRE(type_of(reply) == SLP_NACK);
        CHECK(slp_load16(reply.data() + SLP_BASE_BYTES) == t.told);
        CHECK(client.hear(reply, now) == (t.client != nullptr ? SLP_DROP_UNSEALED : SLP_TAKEN));
        nacked = true;
      }
      // With a secret a refusal may be anybody's word: it is the reason when time is over.
      if (t.client != nullptr && slp_state_of(client.session) == SLP_CONNECTING)
        CHECK(slp_why_of(client.session) == t.found);
      now += 50 * kMillisecond;
      slp_on_timer(client.session, now);
    }
    CHECK(nacked);
    CHECK(slp_state_of(client.session) == SLP_DOWN);
    CHECK(slp_why_of(client.session) == t.found);
    if (t.client != nullptr) CHECK(now > 2 * kSecond);
  }
}

TEST_CASE(
    "a HELLO or an answer that was stripped or changed on the way is forged, and the real one "
    "still counts",
    "[slp][seal]") {
  Ciphers all;
  End client;
  slp_config config = client.config(1452);
  config.nonce = 0x1111, config.connection = 0x10005, config.source_port = 7,
  config.destination_port = 9;
  config.cipher = l2::Cipher::calls(), config.cipher_user = all.client.get();
  client.session = slp_connect(client.room.data(), &config, 1);
  slp_listener listener{.secret = {1},
                        .port = 9,
                        .mtu = 1452,
                        .cipher = l2::Cipher::calls(),
                        .cipher_user = all.listener.get()};
  auto ask = [&](const Frame& hello, slp_meeting& met) {
    slp_frame in = come(hello);
    return slp_listen(&listener, 1, reinterpret_cast<const uint8_t*>("client"), 6, &in, &met);
  };
  auto changed = [](Frame frame, size_t at) {
    frame[at] ^= 4;
    slp_stamp_base(frame.data());
    return frame;
  };
  // What a HELLO says, and its type and ports. (A version or a port that is not ours is refused
  // before.)
  Frame hello = client.say(1).at(0);
  slp_meeting met;
  for (size_t at = SLP_BASE_BYTES + 44; at < hello.size(); ++at) {
    CHECK(ask(changed(hello, at), met) == SLP_LISTEN_REPLY);
    CHECK(met.why == SLP_DROP_FORGED);
  }
  REQUIRE(ask(hello, met) == SLP_LISTEN_REPLY);
  Frame retry(met.reply, met.reply + met.reply_bytes);
  for (size_t at : {SLP_BASE_BYTES + 16u, SLP_BASE_BYTES + 34u, SLP_BASE_BYTES + 80u})
    CHECK(client.hear(changed(retry, at), 1) == SLP_DROP_FORGED);
  CHECK(client.say(1).empty());  // no HELLO with another's cookie
  CHECK(client.hear(retry, 1) == SLP_TAKEN);
  hello = client.say(1).at(0);
  REQUIRE(ask(hello, met) == SLP_LISTEN_ACCEPT);
  End server;
  slp_config theirs = server.config(1452);
  theirs.nonce = 0x2222, theirs.connection = 0x20006, theirs.source_port = 9,
  theirs.destination_port = 7;
  theirs.cipher = l2::Cipher::calls(), theirs.cipher_user = all.server.get();
  REQUIRE(slp_accept(server.room.data(), &theirs, &met.hello, 1, &server.session) == SLP_OK);
  Frame answer = server.say(1).at(0);
  for (size_t at = SLP_BASE_BYTES; at < answer.size(); ++at)
    CHECK(client.hear(changed(answer, at), 1) != SLP_TAKEN);
  Frame stripped(answer);
  slp_hello offer;
  slp_decode_hello(stripped.data() + SLP_BASE_BYTES, &offer);
  offer.capabilities = 0;
  std::memset(offer.tag, 0, sizeof(offer.tag));
  slp_encode_hello(stripped.data() + SLP_BASE_BYTES, &offer);
  slp_stamp_base(stripped.data());
  CHECK(client.hear(stripped, 1) == SLP_DROP_FORGED);
  CHECK(slp_why_of(client.session) == SLP_HAS_NO_KEY);
  CHECK(slp_state_of(client.session) == SLP_CONNECTING);
  CHECK(client.hear(answer, 1) == SLP_TAKEN);
  CHECK(slp_state_of(client.session) == SLP_UP);
  CHECK(slp_why_of(client.session) == SLP_OK);
}

TEST_CASE("who was accepted without looking is refused for what it cannot do", "[slp][seal]") {
  auto key = cipher();
  slp_hello hello{};
  hello.nonce = 5, hello.connection = 1, hello.min_version = hello.max_version = SLP_VERSION,
  hello.mtu = 1452;
  hello.stream_kib = SLP_STREAM_BYTES / 1024, hello.transfers = SLP_TRANSFERS;
  auto accept = [&](bool seals, bool peer_seals, uint8_t bits) {
    End end;
    slp_config config = end.config(1452);
    config.nonce = 6, config.connection = 2;
    if (seals) config.cipher = l2::Cipher::calls(), config.cipher_user = key.get();
    hello.capabilities = peer_seals ? SLP_CAN_SEAL : 0, hello.epoch_bits = bits;
    return slp_accept(end.room.data(), &config, &hello, 1, &end.session);
  };
  CHECK(accept(true, true, 20) == SLP_OK);
  CHECK(accept(true, true, SLP_LEAST_EPOCH_BITS - 1) == SLP_BROKEN);
  CHECK(accept(true, true, SLP_EPOCH_BITS + 1) == SLP_BROKEN);
  CHECK(accept(true, false, 0) == SLP_HAS_NO_KEY);
  CHECK(accept(false, true, 20) == SLP_NEEDS_KEY);
  CHECK(accept(false, false, 0) == SLP_OK);
}

}  // namespace sluice::slp::table
