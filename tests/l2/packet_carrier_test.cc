// Carrier A by itself over a veth pair, with the kernel's ring and without: every frame as it
// was and in order, also around the ring's end and after it was full.
#include <catch2/catch.hpp>

#include <net/if.h>
#include <poll.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <sluice/base/counters.h>
#include <sluice/l2/carrier/frames.h>
#include <sluice/l2/carrier/qdisc.h>
#include <sluice/l2/carrier/ring.h>

#include "kernel_compat/slp/slp_wire.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::l2 {
namespace {

bool have_wire() {
  static const bool there = test::own_network() && test::add_cable("left", 10, "right", 11, 9000);
  return there;
}

#define NEEDS_WIRE() \
  if (!have_wire()) return test::skip("netns", test::kNoNetwork)

// Frame number `n` of so many bytes, for a port: what the kernel's filter looks at, the number,
// and bytes that follow from it.
std::vector<uint8_t> frame_of(uint32_t n, size_t bytes, uint16_t port) {
  std::vector<uint8_t> frame(bytes);
  for (size_t i = 0; i < bytes; ++i) frame[i] = static_cast<uint8_t>(n * 31 + i * 7);
  frame[0] = SLP_VERSION << 5;
  slp_store16(&frame[4], port);
  slp_store32(&frame[8], n);
  return frame;
}

struct Ends {
  explicit Ends(bool ring) {
    auto a = open_packet_carrier("left", 0, false);
    auto b = open_packet_carrier("right", 0, ring);
    REQUIRE(a.ok());
    REQUIRE(b.ok());
    left = std::move(a).value();
    right = std::move(b).value();
    REQUIRE(right.carrier->has_ring() == ring);
    to = right.carrier->own_address();
    room.reserve(right.carrier->slot_bytes());
  }
  void send(uint32_t n, size_t bytes) {
    std::vector<uint8_t> memory = frame_of(n, bytes, right.port);
    FrameOut frame{.to = &to, .pieces = {}, .count = 1};
    frame.pieces[0] = {memory.data(), memory.size()};
    left.carrier->send({&frame, 1});
  }
  // The numbers of what has come by now; each frame is checked.
  std::vector<uint32_t> come(const std::function<size_t(uint32_t)>& bytes_of) {
    std::vector<uint32_t> numbers;
    do {
      for (const FrameIn& frame : right.carrier->receive(room)) {
        uint32_t n = slp_load32(frame.data + 8);
        REQUIRE(frame.bytes == bytes_of(n));
        REQUIRE(std::memcmp(frame.data, frame_of(n, frame.bytes, right.port).data(), frame.bytes) ==
                0);
        REQUIRE(mac_text(*frame.from) == "02:00:00:00:00:0a");
        numbers.push_back(n);
      }
      right.carrier->release();
    } while (!room.drained);
    return numbers;
  }
  // So many of them, which a busy machine may deliver a little later.
  std::vector<uint32_t> come_all(size_t count, const std::function<size_t(uint32_t)>& bytes_of) {
    std::vector<uint32_t> numbers = come(bytes_of);
    for (Instant limit = after(now(), std::chrono::seconds(10));
         numbers.size() < count && now() < limit;) {
      std::vector<uint32_t> more = come(bytes_of);
      numbers.insert(numbers.end(), more.begin(), more.end());
    }
    return numbers;
  }
  // All that come, however many: until none has come for a while.
  std::vector<uint32_t> come_until_quiet(const std::function<size_t(uint32_t)>& bytes_of) {
    constexpr int kQuietMs = 10;
    std::vector<uint32_t> numbers;
    pollfd waiting{right.carrier->fd(), POLLIN, 0};
    do {
      std::vector<uint32_t> more = come(bytes_of);
      numbers.insert(numbers.end(), more.begin(), more.end());
    } while (::poll(&waiting, 1, kQuietMs) == 1);
    return numbers;
  }
  OpenedCarrier left, right;
  PeerAddress to;
  ReceiveRoom room;
};

size_t many_sizes(uint32_t n) { return 60 + (n * 977) % 8900; }

TEST_CASE("frames arrive as they were and in order, around the ring's end as well", "[l2]") {
  NEEDS_WIRE();
  for (bool ring : {false, true}) {
    test::NothingLeftBehind audit;
    INFO((ring ? "ring" : "calls"));
    Ends ends(ring);
    uint32_t next = 0;
    // The ring holds 448 of them.
    for (int burst = 0; burst < 60; ++burst) {
      uint32_t first = next;
      for (int i = 0; i < 1 + burst * 5 % 97; ++i, ++next) ends.send(next, many_sizes(next));
      std::vector<uint32_t> numbers = ends.come_all(next - first, many_sizes);
      REQUIRE(numbers.size() == next - first);
      for (uint32_t i = 0; i < numbers.size(); ++i) REQUIRE(numbers[i] == first + i);
    }
    CHECK(next > 1500);
  }
}

TEST_CASE("a ring that was full loses what comes then, and nothing else", "[l2]") {
  NEEDS_WIRE();
  test::NothingLeftBehind audit;
  Ends ends(true);
  auto small = [](uint32_t) -> size_t { return 100; };
  for (uint32_t round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < 2000; ++i) ends.send(round * 10'000 + i, 100);
    std::vector<uint32_t> numbers = ends.come_until_quiet(small);
    INFO("round " << round << ", " << numbers.size());
    CHECK(numbers.size() < 2000);
    // What the kernel had put off may come behind those that were lost.
    CHECK(std::is_sorted(numbers.begin(), numbers.end()));
    uint32_t in_row = 0;
    while (in_row < numbers.size() && numbers[in_row] == round * 10'000 + in_row) ++in_row;
    CHECK(in_row >= 300);
  }
}

TEST_CASE("a port with a ring is readable when a frame has come, and not when it was taken",
          "[l2]") {
  NEEDS_WIRE();
  for (bool ring : {false, true}) {
    Ends ends(ring);
    auto readable = [&](int limit_ms) {
      pollfd waiting{ends.right.carrier->fd(), POLLIN, 0};
      return ::poll(&waiting, 1, limit_ms) == 1;
    };
    for (uint32_t n = 0; n < 1000; ++n) {
      REQUIRE_FALSE(readable(0));
      ends.send(n, 100);
      REQUIRE(readable(20'000));
      REQUIRE(ends.come([](uint32_t) -> size_t { return 100; }).size() == 1);
    }
  }
}

TEST_CASE("frames that are not this port's, or of another version, wake nobody", "[l2]") {
  NEEDS_WIRE();
  for (bool ring : {false, true}) {
    Ends ends(ring);
    FrameOut frame{.to = &ends.to, .pieces = {}, .count = 1};
    std::vector<uint8_t> other_port = frame_of(1, 100, static_cast<uint16_t>(ends.right.port ^ 1));
    std::vector<uint8_t> other_version = frame_of(2, 100, ends.right.port);
    other_version[0] = 2 << 5;
    for (std::vector<uint8_t>* memory : {&other_port, &other_version}) {
      frame.pieces[0] = {memory->data(), memory->size()};
      ends.left.carrier->send({&frame, 1});
    }
    ends.send(3, 100);
    CHECK(ends.come_until_quiet([](uint32_t) -> size_t { return 100; }) ==
          std::vector<uint32_t>{3});
  }
}

// Bytes that went through the discipline of the left end since it was put there.
bool went_through(const char* comparison) {
  return test::run(std::string("tc -s qdisc show dev left | awk '/Sent/ {exit !($2 ") + comparison +
                   ")}'");
}

// A new one: its counters begin at 0.
void put_qdisc(const std::string& what) {
  REQUIRE(test::run("tc qdisc replace dev left root noqueue && tc qdisc replace dev left root " +
                    what));
}

TEST_CASE("a guarded port takes all frames of its connections, few of others, and all again later",
          "[l2]") {
  NEEDS_WIRE();
  for (bool ring : {false, true}) {
    INFO("ring " << ring);
    Ends ends(ring);
    auto came_of = [&](uint32_t connection, size_t count) {
      size_t came = 0;
      for (size_t i = 0; i < count; ++i) {
        ends.send(connection, 100);
        if (i % 50 == 49 || i + 1 == count)
          came += ends.come_until_quiet([](uint32_t) { return size_t{100}; }).size();
      }
      return came;
    };
    const uint32_t known[] = {5, 7, 1'000'000'007};
    REQUIRE(ends.right.carrier->guard(known, 64));
    for (uint32_t number : known) CHECK(came_of(number, 100) == 100);
    const size_t strangers = came_of(6, 2000) + came_of(0, 2000);
    CHECK(strangers > 0);
    CHECK(strangers < 1000);
    ends.right.carrier->unguard();
    CHECK(came_of(6, 100) == 100);
  }
}

TEST_CASE("frames go around a queueing discipline where that is asked for and it does not shape",
          "[l2]") {
  NEEDS_WIRE();
  struct Case {
    const char *qdisc, *wanted, *through;
  };
  constexpr uint32_t kFrames = 200;
  for (Case c : {Case{"pfifo", "0", ">= 200000"},
                 {"pfifo", "1", "< 100000"},
                 {"tbf rate 10gbit burst 1mb latency 50ms", "1", ">= 200000"}}) {
    INFO(c.qdisc << ", bypass " << c.wanted);
    put_qdisc(c.qdisc);
    ::setenv("SLUICE_L2_QDISC_BYPASS", c.wanted, 1);
    Ends ends(false);
    ::unsetenv("SLUICE_L2_QDISC_BYPASS");
    auto size = [](uint32_t) -> size_t { return 1000; };
    for (uint32_t n = 0; n < kFrames; ++n) {
      ends.send(n, size(n));
      pollfd waiting{ends.right.carrier->fd(), POLLIN, 0};
      REQUIRE(::poll(&waiting, 1, 20'000) == 1);
      CHECK(ends.come(size) == std::vector<uint32_t>{n});
    }
    CHECK(went_through(c.through));
  }
  REQUIRE(test::run("tc qdisc del dev left root"));
}

TEST_CASE("the kernel tells the disciplines of one interface, and who of them shapes", "[l2]") {
  NEEDS_WIRE();
  using Kinds = std::vector<std::string>;
  auto index = static_cast<int>(::if_nametoindex("left"));
  CHECK(qdiscs_of(index) == Kinds{"noqueue"});
  put_qdisc("pfifo");
  CHECK(qdiscs_of(index) == Kinds{"pfifo"});
  CHECK(shaping_qdisc(qdiscs_of(index)).empty());
  put_qdisc("tbf rate 1gbit burst 1mb latency 50ms");
  CHECK(shaping_qdisc(qdiscs_of(index)) == "tbf");
  CHECK(qdiscs_of(static_cast<int>(::if_nametoindex("right"))) == Kinds{"noqueue"});
  REQUIRE(test::run("tc qdisc del dev left root"));
  CHECK(qdiscs_of(0x7fffffff).empty());
  CHECK(shaping_qdisc({"mq", "fq_codel", "fq_codel"}).empty());
  CHECK(shaping_qdisc({"mq", "fq_codel", "clsact"}) == "clsact");
  Status unknown = bypass_qdisc(-1, "gone0", 0x7fffffff);
  CHECK(unknown.code() == Code::kUnsupported);
  CHECK(unknown.to_string().find("gone0") != std::string::npos);
}

}  // namespace
}  // namespace sluice::l2
