// Rings of AF_XDP that lie: what they name is in the memory, and the right part of it, or it is
// left. The rings are arrays here.
#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include <sluice/base/counters.h>
#include <sluice/l2/carrier/xdp_places.h>

namespace sluice::test {
namespace {

constexpr uint32_t kReceive = 8, kSend = 8, kGroup = 4;
constexpr uint64_t kPlace = 2048;
constexpr uint64_t kFirstSend = kReceive * kPlace, kEnd = (kReceive + kSend) * kPlace;

struct FakeRing {
  FakeRing() {
    ring.producer = &producer;
    ring.consumer = &consumer;
    ring.flags = &flags;
    ring.entries = entries.data();
    ring.size = static_cast<uint32_t>(entries.size());
  }
  std::array<uint64_t, 16> entries{};
  uint32_t producer = 0, consumer = 0, flags = 0;
  l2::XdpRing<uint64_t> ring;
};

struct Memory {
  Memory() : bytes(kEnd) {
    places.begin(bytes.data(),
                 {.receive = kReceive, .send = kSend, .group = kGroup, .place_bytes = kPlace});
    places.fill = fill.ring;
    places.sent = sent.ring;
  }
  // The kernel says that these have left.
  void have_left(std::initializer_list<uint64_t> addresses) {
    for (uint64_t address : addresses) sent.ring.at(sent.producer++) = address;
    places.take_back_sent();
  }
  uint64_t wrong() const { return read_counter("l2.xdp_wrong_places") - before; }

  uint64_t before = read_counter("l2.xdp_wrong_places");
  std::vector<uint8_t> bytes;
  FakeRing fill, sent;
  l2::XdpPlaces places;
};

xdp_desc frame_at(uint64_t address, uint32_t bytes) {
  return {.addr = address, .len = bytes, .options = 0};
}

TEST_CASE("a frame lies in one place for frames that come, or is none", "[l2][xdp]") {
  Memory m;
  for (uint64_t place = 0; place < kReceive; ++place) {
    CHECK(m.places.frame(frame_at(place * kPlace, kPlace)) == m.bytes.data() + place * kPlace);
    CHECK(m.places.frame(frame_at(place * kPlace + 256, kPlace - 256)) != nullptr);
    CHECK(m.places.frame(frame_at(place * kPlace + 256, kPlace - 255)) == nullptr);
    CHECK(m.places.frame(frame_at(place * kPlace, UINT32_MAX)) == nullptr);
  }
  for (uint64_t address : {kFirstSend, kFirstSend + 256, kEnd - 1, kEnd, kEnd + 256, UINT64_MAX,
                           UINT64_MAX - kPlace, uint64_t{1} << 63, uint64_t{1} << 32})
    for (uint32_t bytes : {0u, 60u, UINT32_MAX})
      CHECK(m.places.frame(frame_at(address, bytes)) == nullptr);
}

TEST_CASE("only places for frames that come go to the kernel for others", "[l2][xdp]") {
  Memory m;
  m.places.offer(3);
  m.places.offer(100);
  CHECK(m.fill.producer == kReceive);
  const std::vector<uint64_t> came = {256,      kPlace + 300, kFirstSend, kEnd,
                                      kEnd + 7, UINT64_MAX,   2 * kPlace};
  m.places.give_back(came);
  REQUIRE(m.fill.producer == kReceive + 3);
  CHECK(m.fill.ring.at(kReceive) == 0);
  CHECK(m.fill.ring.at(kReceive + 1) == kPlace);
  CHECK(m.fill.ring.at(kReceive + 2) == 2 * kPlace);
  CHECK(m.wrong() == 4);
}

TEST_CASE("places of frames that have left go to their owners once, and what is none to nobody",
          "[l2][xdp]") {
  Memory m;
  l2::XdpSends one, other;
  m.places.own(one, kGroup);
  REQUIRE(one.free.size() == kGroup);
  one.free.clear();
  // Not for sending, of nobody, not in the memory.
  m.have_left({0, kPlace, kFirstSend - 1, kFirstSend + kGroup * kPlace, kEnd - 1, kEnd, UINT64_MAX,
               uint64_t{1} << 63});
  CHECK(one.free.empty());
  CHECK(m.wrong() == 8);
  m.places.own(other, kGroup);
  other.free.clear();
  m.have_left({kFirstSend, kFirstSend + 4 * kPlace, kFirstSend + kPlace + 99});
  CHECK(one.free == std::vector<uint64_t>{kFirstSend, kFirstSend + kPlace});
  CHECK(other.free == std::vector<uint64_t>{kFirstSend + 4 * kPlace});
  for (int i = 0; i < 3; ++i) m.have_left({kFirstSend, kFirstSend, kFirstSend});
  CHECK(one.free.size() == kGroup);
  CHECK(m.wrong() == 8 + 9 - 2);
}

TEST_CASE("a ring that says that it holds more than it can holds nothing", "[l2][xdp]") {
  Memory m;
  l2::XdpSends sends;
  m.places.own(sends, kGroup);
  sends.free.clear();
  for (uint64_t& entry : m.sent.entries) entry = kFirstSend;
  for (uint32_t lie : {17u, 1000u, UINT32_MAX}) {
    m.sent.producer = m.sent.consumer + lie;
    CHECK(m.sent.ring.waiting(m.sent.consumer) == 0);
    m.places.take_back_sent();
    CHECK(sends.free.empty());
  }
  m.sent.consumer = UINT32_MAX;
  m.sent.producer = 1;
  CHECK(m.sent.ring.waiting(UINT32_MAX) == 2);
  m.sent.producer = UINT32_MAX + 16u;
  CHECK(m.sent.ring.waiting(UINT32_MAX) == 16);
}

}  // namespace
}  // namespace sluice::test
