// Frames that no honest peer sends, put on the wire beside a live connection: each is dropped
// or refused and counted by its cause, and the connection goes on as if nothing had been.
#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <tuple>
#include <vector>

#include "kernel_compat/slp/slp.h"
#include "tests/l2/live.h"
#include "tests/l2/raw_peer.h"
#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

// The frame with its header changed, and the checksum right again.
Bytes changed(const Bytes& frame, const std::function<void(slp_base&)>& change) {
  Bytes copy = frame;
  slp_base base;
  REQUIRE(slp_decode_base(frame.data(), frame.size(), frame.size(), &base) == SLP_TAKEN);
  change(base);
  slp_encode_base(copy.data(), &base);
  copy.resize(std::max<size_t>(copy.size(), SLP_BASE_BYTES + slp_extension_bytes(base.type)));
  return copy;
}

// Only bits: the checksum is not made right.
Bytes with_byte(Bytes frame, size_t at, uint8_t value) {
  frame[at] = value;
  return frame;
}

// The extension changed, and the checksum right again.
Bytes with_extension(const Bytes& frame, size_t at, std::initializer_list<uint8_t> bytes) {
  Bytes copy = frame;
  std::copy(bytes.begin(), bytes.end(), copy.begin() + static_cast<long>(SLP_BASE_BYTES + at));
  slp_base base;
  REQUIRE(slp_decode_base(frame.data(), frame.size(), frame.size(), &base) == SLP_TAKEN);
  slp_encode_base(copy.data(), &base);
  return copy;
}

// A numbered frame that has not been sent yet, with an extension of its own.
Bytes fresh(const Bytes& model, uint8_t type, const Bytes& extension, const Bytes& payload = {}) {
  slp_base base;
  REQUIRE(slp_decode_base(model.data(), model.size(), model.size(), &base) == SLP_TAKEN);
  base.type = type;
  base.flags = SLP_FLAG_ACK;
  base.number += 40;
  base.payload_crc = 0;
  base.payload_bytes = static_cast<uint16_t>(payload.size());
  Bytes frame(SLP_BASE_BYTES);
  frame.insert(frame.end(), extension.begin(), extension.end());
  frame.resize(SLP_BASE_BYTES + slp_extension_bytes(type));
  slp_encode_base(frame.data(), &base);
  frame.insert(frame.end(), payload.begin(), payload.end());
  return frame;
}

struct Bad {
  const char* what;
  Bytes frame;
  const char* cause;
};

std::vector<Bad> bad_frames(const Bytes& eager) {
  auto b = [&](const std::function<void(slp_base&)>& change) { return changed(eager, change); };
  Bytes cut20(eager.begin(), eager.begin() + 20), cut39(eager.begin(), eager.begin() + 39),
      cut44(eager.begin(), eager.begin() + 44);
  Bytes padded = eager;
  padded.resize(padded.size() + 30);
  std::vector<Bad> all = {
      {"twenty bytes", cut20, "l2.dropped_runt"},
      {"one byte less than a base", cut39, "l2.dropped_runt"},
      {"a base without all of its extension", cut44, "l2.dropped_runt"},
      {"an old frame with padding", padded, "l2.dropped_repeated"},
      {"an old frame", eager, "l2.dropped_repeated"},
      {"type 0", with_byte(eager, 0, SLP_VERSION << 5), "l2.dropped_type"},
      {"type 10", with_byte(eager, 0, SLP_VERSION << 5 | 10), "l2.dropped_type"},
      {"type 31", with_byte(eager, 0, SLP_VERSION << 5 | 31), "l2.dropped_type"},
      {"reserved flag 0x40", with_byte(eager, 1, eager[1] | 0x40), "l2.dropped_flags"},
      {"reserved flag 0x80", with_byte(eager, 1, eager[1] | 0x80), "l2.dropped_flags"},
      {"a payload longer than the frame", b([](slp_base& f) { f.payload_bytes = 1400; }),
       "l2.dropped_length"},
      {"a payload of 65535 bytes", b([](slp_base& f) { f.payload_bytes = 65535; }),
       "l2.dropped_length"},
      {"a wrong checksum", with_byte(eager, 28, eager[28] ^ 1), "l2.dropped_header_crc"},
      {"a changed header", with_byte(eager, 12, eager[12] ^ 1), "l2.dropped_header_crc"},
      {"a payload checksum that is wrong",
       b([](slp_base& f) { f.number += 40, f.flags |= SLP_FLAG_PCRC, f.payload_crc = 1; }),
       "l2.dropped_payload_crc"},
      {"a payload checksum that is not announced", b([](slp_base& f) { f.payload_crc = 1; }),
       "l2.dropped_content"},
      {"another session", b([](slp_base& f) { f.session ^= 1; }), "l2.frames_of_nobody"},
      {"an older generation of the connection", b([](slp_base& f) { f.connection -= 0x10000; }),
       "l2.frames_of_nobody"},
      {"a connection that never was", b([](slp_base& f) { f.connection += 5000; }),
       "l2.frames_of_nobody"},
      {"another source port", b([](slp_base& f) { f.source_port ^= 1; }), "l2.frames_of_nobody"},
      {"a packet number far ahead", b([](slp_base& f) { f.number += (1u << 30) + 1000; }),
       "l2.dropped_number"},
      {"a packet number before the first", b([](slp_base& f) { f.number -= 1u << 20; }),
       "l2.dropped_number"},
      {"an acknowledgement of what was never sent",
       b([](slp_base& f) { f.number += 40, f.flags |= SLP_FLAG_ACK, f.ack += 100'000; }),
       "l2.dropped_ack"},
      {"a run that reaches below the first number",
       b([](slp_base& f) { f.number += 40, f.flags |= SLP_FLAG_ACK, f.ack_run = 65535; }),
       "l2.dropped_ack"},
      {"a stream that is not there",
       with_extension(changed(eager, [](slp_base& f) { f.number += 40; }), 4, {7}),
       "l2.dropped_content"},
  };
  Bytes sack = fresh(eager, SLP_ACK, {33, 0, 0, 0}, Bytes(4 * 33, 1));
  all.push_back({"more ranges than there may be", sack, "l2.dropped_content"});
  all.push_back(
      {"ranges that are not there", fresh(eager, SLP_ACK, {8, 0, 0, 0}, {}), "l2.dropped_content"});
  all.push_back({"ranges below the first number",
                 fresh(eager, SLP_ACK, {1, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff}), "l2.dropped_ack"});
  all.push_back(
      {"an empty gap", fresh(eager, SLP_ACK, {1, 0, 0, 0}, {0, 0, 1, 0}), "l2.dropped_ack"});
  all.push_back(
      {"zeros that are none", fresh(eager, SLP_ACK, {0, 0, 1, 0}, {}), "l2.dropped_content"});
  all.push_back(
      {"a ping with something in it", fresh(eager, SLP_PING, {}, {1, 2, 3}), "l2.dropped_content"});
  all.push_back({"bytes of a push that nobody announced",
                 fresh(eager, SLP_DATA, {0, 0, 0, 0, 0, 0, 0, 0, 3, 0x80, 77, 0}, Bytes(1344)),
                 "l2.dropped_transfer"});
  all.push_back({"bytes of a transfer with no such slot",
                 fresh(eager, SLP_DATA, {0, 0, 0, 0, 0, 0, 0, 0, 200, 0, 1, 0}, Bytes(1344)),
                 "l2.dropped_content"});
  return all;
}

TEST_CASE("frames that are wrong in one thing are dropped and counted by it", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Live live;
  Bytes eager = live.latest(SLP_EAGER);
  for (const Bad& bad : bad_frames(eager)) {
    INFO(bad.what << ": " << bad.cause);
    Grown grown;
    live.inject(bad.frame);
    bool counted =
        live.two.until([&] { return grown(bad.cause) > 0; }, in(std::chrono::seconds(5)));
    INFO(grown.story("l2."));
    CHECK(counted);
    CHECK(live.two.server.state() == EndpointState::kConnected);
  }
  live.check_alive();
  live.two.exchange_tensors(300'000);
}

TEST_CASE("frames of other versions, ports, hosts and VLANs do not wake the process", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Live live;
  Bytes eager = live.latest(SLP_EAGER);
  Bytes broken = with_byte(eager, 28, eager[28] ^ 1);
  auto tagged = [&](uint16_t type, uint16_t vlan, const Bytes& frame) {
    Bytes inner = {static_cast<uint8_t>(vlan >> 8), static_cast<uint8_t>(vlan), SLP_ETHERTYPE >> 8,
                   SLP_ETHERTYPE & 255};
    inner.insert(inner.end(), frame.begin(), frame.end());
    return ethernet(kRight, kLeft, inner, type);
  };
  Bytes twice = {0, 7, 0x81, 0, 0, 7};
  twice.insert(twice.end(), {SLP_ETHERTYPE >> 8, SLP_ETHERTYPE & 255});
  twice.insert(twice.end(), broken.begin(), broken.end());
  Grown grown;
  for (const Bytes& frame : {
           ethernet(kRight, kLeft, with_byte(broken, 0, 2 << 5 | SLP_EAGER)),
           ethernet(kRight, kLeft, with_byte(broken, 0, SLP_EAGER)),
           ethernet(kRight, kLeft, with_byte(broken, 4, broken[4] ^ 1)),
           ethernet(mac_number(99), kLeft, broken),
           ethernet({0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, kLeft, broken),
           ethernet(kRight, kLeft, broken, 0x88b6),
           ethernet(kRight, kLeft, Bytes(3)),
           tagged(0x8100, 7, broken),
           ethernet(kRight, kLeft, twice, 0x88a8),
       }) {
    REQUIRE(live.wire.send(frame));
  }
  // What comes after them has been counted: they were not.
  REQUIRE(live.wire.send(tagged(0x8100, 0, broken)));  // a priority tag is no VLAN
  live.inject(with_byte(eager, 1, eager[1] | 0x40));
  CHECK(live.two.until([&] { return grown("l2.dropped_flags") > 0; }, in(std::chrono::seconds(5))));
  INFO(grown.story("l2."));
  CHECK(grown("l2.dropped_header_crc") == 1);
  CHECK(grown("l2.dropped_version") + grown("l2.dropped_runt") + grown("l2.frames_of_nobody") == 0);
  live.check_alive();
}

TEST_CASE("the frames of an earlier connection mean nothing to a later one", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Cable cable;
  RawWire seen("right"), wire("left");
  std::vector<Bytes> old;
  Two two;
  two.exchange_messages(20'000);
  REQUIRE(two.client.close(soon()).ok());
  REQUIRE(two.until([&] { return two.server.state() == EndpointState::kClosed; }));
  for (auto frame = seen.receive(); !frame.empty(); frame = seen.receive())
    old.emplace_back(frame.begin(), frame.end());
  REQUIRE(old.size() > 20);
  std::tie(two.client, two.server) = two.connect_again();
  Grown grown;
  for (const Bytes& frame : old) {
    REQUIRE(wire.send(frame));
    two.pass(std::chrono::microseconds(100));
  }
  CHECK(two.until([&] { return grown("l2.frames_of_nobody") > 10; }));
  INFO(grown.story("l2."));
  two.exchange_messages(20'000);
  two.exchange_tensors(20'000);
  CHECK(two.client.state() == EndpointState::kConnected);
}

}  // namespace
}  // namespace sluice::test
