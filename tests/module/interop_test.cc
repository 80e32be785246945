// The module and packet sockets, whose frames are the same.
#include <catch2/catch.hpp>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "tests/module/packet_peer.h"
#include "tests/module/wire.h"

namespace sluice::module_test {
namespace {

constexpr int kTurns = 200000;  // a bound on a hang

std::string pattern(size_t bytes, unsigned seed) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7 + seed);
  return text;
}

template <typename Until>
bool run(PacketPeer& peer, Until until) {
  for (int i = 0; i < kTurns; ++i) {
    if (until()) return true;
    peer.turn(1);
  }
  return false;
}

// The module's socket sends messages of all sizes, the packet socket's end answers each.
void exchange(PacketPeer& peer, int fd, const sockaddr_sluice* to, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    std::string text = pattern(i * 331 % (SLUICE_MAX_MESSAGE + 1), i);
    // What went before may not be acknowledged yet, and fill the room.
    int sent = -EAGAIN;
    REQUIRE(run(
        peer, [&] { return (sent = to ? send_to(fd, text, *to) : send_on(fd, text)) != -EAGAIN; }));
    REQUIRE(sent == static_cast<int>(text.size()));
    REQUIRE(run(peer, [&] { return !peer.messages.empty(); }));
    REQUIRE(peer.messages.front() == text);
    peer.messages.pop_front();
    REQUIRE(run(peer, [&] { return peer.send(text); }));
    Received got{.result = -EAGAIN, .text = {}};
    REQUIRE(run(peer, [&] { return (got = receive(fd, MSG_DONTWAIT)).result != -EAGAIN; }));
    REQUIRE(got.result == static_cast<int>(text.size()));
    REQUIRE(got.text == text);
  }
}

TEST_CASE("the module calls a packet socket's end, with and without loss") {
  unsigned drop_every = GENERATE(0u, 7u);
  Module module;
  Wire wire;
  PacketPeer peer(wire.b, 7000);
  peer.listen();
  peer.drop_every = drop_every;
  Fd client = open_socket(wire.a.space, SOCK_NONBLOCK);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == EINPROGRESS);
  REQUIRE(run(peer, [&] { return peer.up(); }));
  exchange(peer, client.value(), nullptr, 60);
}

TEST_CASE("a packet socket's end calls the module, with and without loss") {
  unsigned drop_every = GENERATE(0u, 7u);
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.a, 7000, SOCK_NONBLOCK);
  PacketPeer peer(wire.b, 7001);
  peer.drop_every = drop_every;
  peer.connect(wire.a.mac, 7000);
  REQUIRE(run(peer, [&] { return peer.up(); }));
  sockaddr_sluice to = seen_from(wire.a, wire.b, 7001);
  exchange(peer, server.value(), &to, 60);
}

// Whoever of the two asks, both compute and check: what a switch or a bridge has damaged is as if
// lost.
TEST_CASE(
    "payloads that are damaged on their way are found where an end has asked for checksums, and "
    "sent again") {
  bool module_asks = GENERATE(false, true);
  INFO(module_asks);
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.a, 7000, SOCK_NONBLOCK);
  int asks = module_asks;
  REQUIRE(::setsockopt(server.value(), SOL_SLUICE, SLUICE_CHECKSUMS, &asks, sizeof(asks)) == 0);
  PacketPeer peer(wire.b, 7001);
  peer.checksums = !module_asks;
  peer.damage_every = 5;
  peer.connect(wire.a.mac, 7000);
  REQUIRE(run(peer, [&] { return peer.up(); }));
  sockaddr_sluice to = seen_from(wire.a, wire.b, 7001);
  exchange(peer, server.value(), &to, 60);
  CHECK(counter(wire.a.space, "frames_dropped") > 0);
  CHECK(slp_counters_of(peer.session())->dropped[SLP_DROP_PAYLOAD_CRC] > 0);
}

TEST_CASE("a packet socket's end that begins anew replaces the session that it had") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.a, 7000);
  for (int life = 0; life < 3; ++life) {
    // One that says no BYE: its frames are dropped from here on.
    auto peer = std::make_unique<PacketPeer>(wire.b, 7001);
    peer->connect(wire.a.mac, 7000);
    REQUIRE(run(*peer, [&] { return peer->up(); }));
    REQUIRE(run(*peer, [&] { return peer->send("life"); }));
    REQUIRE(run(*peer, [&] { return slp_drained(peer->session()); }));
    CHECK(receive(server.value()).text == "life");
    peer->drop_every = 1;
  }
  CHECK(counter(wire.a.space, "sessions_begun") == 3);
}

TEST_CASE("what a peer asks of memory that it was never given is refused") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.a, 7000);
  PacketPeer peer(wire.b, 7001);
  peer.connect(wire.a.mac, 7000);
  REQUIRE(run(peer, [&] { return peer.up(); }));
  std::minstd_rand random(5);
  for (unsigned i = 0; i < 40; ++i) {
    uint32_t handle = static_cast<uint32_t>(random()) & (i % 2 ? 0xffffffffu : 0xffff003fu);
    slp_status status = i % 4 < 2 ? slp_pull(peer.session(), handle, random(), 4096, i)
                                  : slp_push(peer.session(), handle, random(), 4096, i, nullptr);
    REQUIRE(status == SLP_OK);
    REQUIRE(run(peer, [&] { return peer.ended.size() == i + 1; }));
    CHECK(peer.ended.back() == std::pair<uint64_t, slp_status>(i, SLP_BAD_HANDLE));
  }
  CHECK(peer.up());
}

TEST_CASE("frames of a stranger, cut, changed and repeated, do not disturb a session") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.a, 7000, SOCK_NONBLOCK);
  PacketPeer peer(wire.b, 7001);
  peer.keep = true;
  peer.connect(wire.a.mac, 7000);
  REQUIRE(run(peer, [&] { return peer.up(); }));
  sockaddr_sluice to = seen_from(wire.a, wire.b, 7001);
  std::minstd_rand random(11);
  for (int round = 0; round < 40; ++round) {
    exchange(peer, server.value(), &to, 1);
    std::vector<std::vector<uint8_t>> frames = std::exchange(peer.seen, {});
    for (std::vector<uint8_t>& frame : frames) {
      size_t changed = random() % 3;
      for (size_t i = 0; i < changed; ++i)
        frame[random() % frame.size()] ^= static_cast<uint8_t>(1u << random() % 8);
      // Half of them with a good checksum: what is behind it is looked at, too.
      if (random() % 2 && frame.size() >= SLP_BASE_BYTES) {
        slp_base base;
        uint8_t whole[SLP_MAX_HEADER];
        std::memcpy(whole, frame.data(), std::min(frame.size(), sizeof(whole)));
        // A type that the frame has room for; the session's own number stays.
        base = {.type = static_cast<uint8_t>(1 + random() % 9),
                .flags = static_cast<uint8_t>(random() % 16),
                .source_port = 7001,
                .destination_port = 7000};
        base.connection = slp_load32(frame.data() + 8);
        base.session = static_cast<uint32_t>(random());  // a stranger cannot know it
        if (frame.size() >= SLP_BASE_BYTES + slp_extension_bytes(base.type)) {
          base.payload_bytes =
              static_cast<uint16_t>(frame.size() - SLP_BASE_BYTES - slp_extension_bytes(base.type));
          slp_encode_base(whole, &base);
          std::memcpy(frame.data(), whole, SLP_BASE_BYTES);
        }
      }
      if (random() % 4 == 0) frame.resize(random() % (frame.size() + 1));
      // A packet socket sends no empty frame; and a HELLO that proves itself would begin anew.
      if (!frame.empty() && (frame[0] & 31) != SLP_HELLO) peer.inject(frame);
    }
    REQUIRE(run(peer, [&] { return slp_drained(peer.session()); }));
  }
  CHECK(peer.up());
  CHECK(counter(wire.a.space, "frames_dropped") > 0);
}

}  // namespace
}  // namespace sluice::module_test
