// Carrier B by itself, on the loopback device: how frames become datagrams, what is taken for
// a frame and what is not, and the network's marks.
#include <catch2/catch.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <vector>

#include <sluice/base/counters.h>
#include <sluice/l2/carrier/frames.h>
#include <sluice/l2/carrier/guard_filter.h>
#include <sluice/l2/carrier/udp_carrier.h>
#include <sluice/l2/carrier/udp_socket.h>
#include <sluice/runtime/names.h>

#include "kernel_compat/slp/slp_wire.h"
#include "tests/support/audit.h"

namespace sluice::l2 {
namespace {

constexpr int kPatience = 20'000;  // ms

struct Frame {
  std::vector<uint8_t> bytes;
  bool ce;
  PeerAddress from;
};

// What comes, until `count` frames have.
std::vector<Frame> frames_at(Carrier& carrier, size_t count) {
  ReceiveRoom room;
  room.reserve(carrier.slot_bytes());
  std::vector<Frame> all;
  while (all.size() < count) {
    pollfd waiting{carrier.fd(), POLLIN, 0};
    REQUIRE(::poll(&waiting, 1, kPatience) == 1);
    do {
      for (const FrameIn& frame : carrier.receive(room))
        all.push_back({{frame.data, frame.data + frame.bytes}, frame.ce, *frame.from});
    } while (!room.drained);
  }
  return all;
}

// What has come by now.
size_t frames_now(Carrier& carrier) {
  ReceiveRoom room;
  room.reserve(carrier.slot_bytes());
  size_t count = 0;
  do {
    count += carrier.receive(room).size();
  } while (!room.drained);
  return count;
}

Result<UdpMeeting> towards(const std::string& digits, uint16_t port) {
  return open_udp_towards(
      address_in_digits({.scheme = Scheme::kTcp, .host = digits, .port = port, .name = {}}));
}

struct Ends {
  explicit Ends(const std::string& host) {
    auto listening = open_udp_carrier(host, 0);
    INFO(listening.status().to_string());
    REQUIRE(listening.ok());
    near = std::move(listening).value();
    auto meeting = towards(host, near.port);
    REQUIRE(meeting.ok());
    far = std::move(meeting->opened);
    near_as_peer = meeting->peer;
  }
  OpenedCarrier near, far;
  PeerAddress near_as_peer;
};

// Memory of frames of these sizes, each different in every byte.
struct Outgoing {
  Outgoing(const std::vector<size_t>& sizes, const PeerAddress& to)
      : memory(sizes.size()), frames(sizes.size()) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      memory[i].resize(sizes[i]);
      std::iota(memory[i].begin(), memory[i].end(), static_cast<uint8_t>(i * 17));
      frames[i].to = &to;
      // In pieces, as headers and payloads are.
      size_t first = std::min<size_t>(sizes[i], 40);
      frames[i].pieces[0] = {memory[i].data(), first};
      frames[i].pieces[1] = {memory[i].data() + first, sizes[i] - first};
      frames[i].count = sizes[i] > first ? 2 : 1;
    }
  }
  std::vector<std::vector<uint8_t>> memory;
  std::vector<FrameOut> frames;
};

// A socket like anybody's.
struct Stranger {
  explicit Stranger(const PeerAddress& to, int ecn = 0) {
    UdpPlace place = unpack(to);
    bool v4 = IN6_IS_ADDR_V4MAPPED(&place.address);
    fd = ::socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0);
    REQUIRE(::setsockopt(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS, &ecn,
                         sizeof(ecn)) == 0);
    sockaddr_in6 v6_address{.sin6_family = AF_INET6,
                            .sin6_port = htons(place.port),
                            .sin6_flowinfo = 0,
                            .sin6_addr = place.address,
                            .sin6_scope_id = 0};
    sockaddr_in v4_address{};
    v4_address.sin_family = AF_INET;
    v4_address.sin_port = htons(place.port);
    std::memcpy(&v4_address.sin_addr, place.address.s6_addr + 12, 4);
    REQUIRE((v4 ? ::connect(fd, reinterpret_cast<sockaddr*>(&v4_address), sizeof(v4_address))
                : ::connect(fd, reinterpret_cast<sockaddr*>(&v6_address), sizeof(v6_address))) ==
            0);
  }
  ~Stranger() { ::close(fd); }
  void send(size_t bytes) const {
    std::vector<uint8_t> data(bytes, 0x21);
    REQUIRE(::send(fd, data.data(), bytes, 0) == static_cast<ssize_t>(bytes));
  }
  int fd;
};

TEST_CASE("frames of all sizes arrive as they were, in order, joined or not", "[l2][udp]") {
  for (const char* host : {"127.0.0.1", "::1"}) {
    test::NothingLeftBehind audit;
    Ends ends(host);
    for (const std::vector<size_t>& sizes : {std::vector<size_t>{40},
                                             {48, 48, 48},
                                             {1400, 1400, 60},
                                             {60, 1400, 1400},
                                             {1400, 60, 1400, 60},
                                             std::vector<size_t>(64, 1400),
                                             std::vector<size_t>(64, 40),
                                             std::vector<size_t>(kBatch, 40),
                                             {65'000, 65'000, 41},
                                             {8120, 8120, 8120}}) {
      Outgoing out(sizes, ends.near_as_peer);
      ends.far.carrier->send(out.frames);
      std::vector<Frame> came = frames_at(*ends.near.carrier, sizes.size());
      REQUIRE(came.size() == sizes.size());
      for (size_t i = 0; i < sizes.size(); ++i) {
        CHECK(came[i].bytes == out.memory[i]);
        CHECK_FALSE(came[i].ce);
        CHECK(unpack(came[i].from).port == ends.far.port);
      }
      // And back, from the socket of many peers.
      Outgoing back(sizes, came[0].from);
      ends.near.carrier->send(back.frames);
      std::vector<Frame> returned = frames_at(*ends.far.carrier, sizes.size());
      REQUIRE(returned.size() == sizes.size());
      for (size_t i = 0; i < sizes.size(); ++i) CHECK(returned[i].bytes == back.memory[i]);
    }
  }
}

// Where the payload of DATA is expected, and what has come there.
struct Destination {
  Destination(size_t payload, size_t room)
      : memory(room, 0xee), expected{.to = memory.data(), .room = room, .payload = payload} {}
  // Frames until so many have come; each as it was sent, wherever its parts lie.
  std::vector<std::vector<uint8_t>> frames_at(Carrier& carrier, size_t count) {
    ReceiveRoom room;
    room.reserve(carrier.slot_bytes());
    std::vector<std::vector<uint8_t>> all;
    while (all.size() < count) {
      pollfd waiting{carrier.fd(), POLLIN, 0};
      REQUIRE(::poll(&waiting, 1, kPatience) == 1);
      room.expected = expected;
      for (const FrameIn& frame : carrier.receive(room)) {
        std::vector<uint8_t> bytes(frame.data, frame.data + frame.present());
        if (frame.rest != nullptr) {
          CHECK(frame.rest == expected.to);
          size_t payload = frame.bytes - kDataHeader;
          bytes.insert(bytes.end(), frame.rest, frame.rest + payload);
          expected.to += payload;
          expected.room -= payload;
          ++in_place;
        }
        all.push_back(std::move(bytes));
      }
    }
    return all;
  }
  std::vector<uint8_t> memory;
  Expected expected;
  size_t in_place = 0;
};

TEST_CASE("frames that were expected are received where they belong, and all others whole",
          "[l2][udp]") {
  test::NothingLeftBehind audit;
  constexpr size_t kPayload = 1344, kWhole = kDataHeader + kPayload, kFrames = 20;
  struct Case {
    const char* what;
    std::vector<size_t> sizes;
    size_t room, in_place;
  };
  std::vector<size_t> alike(kFrames, kWhole), last_is_short(kFrames, kWhole);
  last_is_short.back() = 700;
  const Case cases[] = {
      {"all as expected", alike, kFrames * kPayload, kFrames},
      {"the last one short", last_is_short, kFrames * kPayload, kFrames},
      {"more than there is room for", alike, 5 * kPayload + 100, 5},
      {"smaller ones", std::vector<size_t>(kFrames, 600), kFrames * kPayload, SIZE_MAX},
      {"larger ones", std::vector<size_t>(kFrames, kWhole + 8), kFrames * kPayload, 0},
      {"no more than a header", std::vector<size_t>(3, 40), kFrames * kPayload, 0},
  };
  for (const Case& each : cases) {
    INFO(each.what);
    Ends ends("127.0.0.1");
    Outgoing out(each.sizes, ends.near_as_peer);
    Destination destination(kPayload, each.room);
    ends.far.carrier->send(out.frames);
    CHECK((destination.frames_at(*ends.near.carrier, each.sizes.size()) == out.memory));
    // Small ones that come one by one fit the place of one; joined, they do not.
    if (each.in_place != SIZE_MAX) CHECK(destination.in_place == each.in_place);
  }
}

TEST_CASE("only the DATA that was expected for a place counts as that", "[l2][udp]") {
  std::vector<uint8_t> memory(4 * SLP_UNIT_BYTES), header(kDataHeader);
  const Expected expected{.to = memory.data(),
                          .room = memory.size(),
                          .payload = SLP_UNIT_BYTES,
                          .connection = 7,
                          .transfer = 0x30002,
                          .offset = 10 * SLP_UNIT_BYTES};
  auto judge = [&](auto change, size_t place = 1, size_t bytes = kDataHeader + SLP_UNIT_BYTES) {
    slp_base base{};
    base.type = SLP_DATA, base.flags = SLP_FLAG_ACK;
    base.connection = 7, base.payload_bytes = SLP_UNIT_BYTES;
    uint64_t offset = 11 * SLP_UNIT_BYTES;
    uint32_t transfer = 0x30002;
    change(base, offset, transfer);
    slp_store64(header.data() + SLP_BASE_BYTES, offset);
    slp_store32(header.data() + SLP_BASE_BYTES + 8, transfer);
    slp_store32(header.data() + SLP_BASE_BYTES + 12, 0);
    slp_encode_base(header.data(), &base);
    return expected.is(
        {.data = header.data(), .bytes = bytes, .rest = memory.data() + place * SLP_UNIT_BYTES});
  };
  CHECK(judge([](slp_base&, uint64_t&, uint32_t&) {}));
  CHECK_FALSE(judge([](slp_base&, uint64_t&, uint32_t&) {}, 2));
  CHECK_FALSE(judge([](slp_base&, uint64_t&, uint32_t&) {}, 1, kDataHeader + 100));
  CHECK_FALSE(judge([](slp_base&, uint64_t&, uint32_t&) {}, 1, kDataHeader));
  CHECK_FALSE(judge([](slp_base& base, uint64_t&, uint32_t&) { base.type = SLP_EAGER; }));
  CHECK_FALSE(judge([](slp_base& base, uint64_t&, uint32_t&) { base.flags |= SLP_FLAG_PCRC; }));
  CHECK_FALSE(judge([](slp_base& base, uint64_t&, uint32_t&) { base.flags |= SLP_FLAG_SEALED; }));
  CHECK_FALSE(judge([](slp_base& base, uint64_t&, uint32_t&) { base.connection = 8; }));
  CHECK_FALSE(judge([](slp_base&, uint64_t& offset, uint32_t&) { offset += SLP_UNIT_BYTES; }));
  CHECK_FALSE(judge([](slp_base&, uint64_t&, uint32_t& transfer) { transfer += 0x10000; }));
}

TEST_CASE(
    "64 frames of one size leave as two packets to be cut, and frames for different peers apart",
    "[l2][udp]") {
  test::NothingLeftBehind audit;
  Ends one("127.0.0.1"), other("127.0.0.1");
  uint64_t joined = read_counter("l2.udp_datagrams_joined");
  Outgoing out(std::vector<size_t>(64, 1400), one.near_as_peer);
  one.far.carrier->send(out.frames);
  CHECK(frames_at(*one.near.carrier, 64).size() == 64);
  CHECK(read_counter("l2.udp_datagrams_joined") - joined == 2);  // 46 and 18
  // From a listener, which has many peers.
  one.far.carrier->send({out.frames.data(), 1});
  PeerAddress first = frames_at(*one.near.carrier, 1)[0].from;
  auto third = towards("127.0.0.1", one.near.port);
  REQUIRE(third.ok());
  third->opened.carrier->send({out.frames.data(), 1});
  PeerAddress second = frames_at(*one.near.carrier, 1)[0].from;
  Outgoing mixed(std::vector<size_t>(6, 100), first);
  for (size_t i : {1u, 4u, 5u}) mixed.frames[i].to = &second;
  one.near.carrier->send(mixed.frames);
  CHECK(frames_at(*one.far.carrier, 3).size() == 3);
  CHECK(frames_at(*third->opened.carrier, 3).size() == 3);
}

TEST_CASE("the network's congestion mark is seen, and ours leave as able to be marked",
          "[l2][udp]") {
  for (const char* host : {"127.0.0.1", "::1", ""}) {
    test::NothingLeftBehind audit;
    auto listening = open_udp_carrier(host, 0);
    REQUIRE(listening.ok());
    for (const char* to : {"127.0.0.1", "::1"}) {
      if (*host != 0 && std::string(host) != to) continue;
      auto meeting = towards(to, listening->port);
      REQUIRE(meeting.ok());
      for (int ecn : {0, 1, 2, 3}) {
        Stranger stranger(meeting->peer, ecn);
        stranger.send(48);
        std::vector<Frame> came = frames_at(*listening->carrier, 1);
        CHECK(came[0].ce == (ecn == 3));
      }
      // The reverse: a plain socket sees ECT(0).
      Stranger stranger(meeting->peer);
      bool v4 = std::string(to) == "127.0.0.1";
      int yes = 1;
      REQUIRE(::setsockopt(stranger.fd, v4 ? IPPROTO_IP : IPPROTO_IPV6,
                           v4 ? IP_RECVTOS : IPV6_RECVTCLASS, &yes, sizeof(yes)) == 0);
      stranger.send(48);
      PeerAddress from = frames_at(*listening->carrier, 1)[0].from;
      Outgoing out({100}, from);
      listening->carrier->send(out.frames);
      char data[200], control[128];
      iovec place{data, sizeof(data)};
      msghdr header{};
      header.msg_iov = &place;
      header.msg_iovlen = 1;
      header.msg_control = control;
      header.msg_controllen = sizeof(control);
      REQUIRE(::recvmsg(stranger.fd, &header, 0) == 100);
      cmsghdr* c = CMSG_FIRSTHDR(&header);
      REQUIRE(c != nullptr);
      CHECK(*CMSG_DATA(c) == 2);
    }
  }
}

TEST_CASE("what is too long or too short for a frame is dropped and counted", "[l2][udp]") {
  test::NothingLeftBehind audit;
  Ends ends("127.0.0.1");
  Stranger stranger(ends.near_as_peer);
  uint64_t before = read_counter("l2.frames_truncated");
  stranger.send(0);
  stranger.send(65'507);  // more than any frame
  stranger.send(65'487);
  std::vector<Frame> came = frames_at(*ends.near.carrier, 1);
  CHECK(came.size() == 1);
  CHECK(read_counter("l2.frames_truncated") - before == 2);
}

TEST_CASE("a socket that has met its peer takes nobody else's datagrams", "[l2][udp]") {
  test::NothingLeftBehind audit;
  Ends ends("127.0.0.1");
  PeerAddress far_as_peer =
      pack({.address = unpack(ends.far.carrier->own_address()).address, .port = ends.far.port});
  Stranger stranger(far_as_peer);
  stranger.send(48);
  Outgoing out({48}, ends.near_as_peer);
  ends.far.carrier->send(out.frames);
  PeerAddress from = frames_at(*ends.near.carrier, 1)[0].from;
  Outgoing back({60}, from);
  ends.near.carrier->send(back.frames);
  std::vector<Frame> came = frames_at(*ends.far.carrier, 1);
  REQUIRE(came.size() == 1);
  CHECK(came[0].bytes.size() == 60);
  CHECK(frames_now(*ends.far.carrier) == 0);
}

TEST_CASE("that nobody is there is told once, and the next frame leaves all the same",
          "[l2][udp]") {
  test::NothingLeftBehind audit;
  Ends ends("127.0.0.1");
  uint16_t port = ends.near.port;
  ends.near.carrier.reset();
  Outgoing out({48}, ends.near_as_peer);
  ends.far.carrier->send(out.frames);
  pollfd complaint{ends.far.carrier->fd(), POLLIN, 0};
  REQUIRE(::poll(&complaint, 1, 20'000) == 1);
  CHECK(frames_now(*ends.far.carrier) == 0);
  CHECK(ends.far.carrier->refused());
  CHECK_FALSE(ends.far.carrier->refused());
  ends.far.carrier->send(out.frames);
  auto again = open_udp_carrier("127.0.0.1", port);
  REQUIRE(again.ok());
  ends.far.carrier->send(out.frames);  // finds the complaint about the one before
  CHECK(frames_at(*again->carrier, 1).size() == 1);
  CHECK(ends.far.carrier->refused());
}

TEST_CASE("addresses of the carrier read as users write them", "[l2][udp]") {
  Ends v4("127.0.0.1"), v6("::1");
  CHECK(v4.near.carrier->address_text(v4.near.carrier->own_address(), 1) ==
        "l2://udp/127.0.0.1:" + std::to_string(v4.near.port));
  CHECK(v6.near.carrier->address_text(v6.near_as_peer, 1) ==
        "l2://udp/[::1]:" + std::to_string(v6.near.port));
  auto everywhere = open_udp_carrier("", 0);
  REQUIRE(everywhere.ok());
  CHECK(everywhere->carrier->address_text(everywhere->carrier->own_address(), 1) ==
        "l2://udp/[::]:" + std::to_string(everywhere->port));
}

// Frames that name this connection, and are nothing else.
void send_naming(Carrier& from, const PeerAddress& to, uint32_t connection, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    Outgoing out({64}, to);
    slp_store32(out.memory[0].data() + 8, connection);
    from.send(out.frames);
  }
}

TEST_CASE("a guarded port takes all frames of its connections, and few of others", "[l2][udp]") {
  for (const char* host : {"127.0.0.1", "::1"}) {
    for (size_t known : {size_t{0}, size_t{1}, size_t{7}, kMostGuarded}) {
      INFO(host << ", connections " << known);
      Ends ends(host);
      std::vector<uint32_t> numbers(known);
      for (size_t i = 0; i < known; ++i) numbers[i] = static_cast<uint32_t>(i * 2'654'435'761u + 5);
      REQUIRE(ends.near.carrier->guard(numbers, 64));
      for (uint32_t number : numbers) {
        send_naming(*ends.far.carrier, ends.near_as_peer, number, 1);
        if (frames_at(*ends.near.carrier, 1).size() != 1) FAIL_CHECK("lost: " << number);
      }
      size_t strangers = 0;
      for (int i = 0; i < 20; ++i) {
        send_naming(*ends.far.carrier, ends.near_as_peer, i % 2 == 0 ? 0u : 6u, 100);
        strangers += frames_now(*ends.near.carrier);
      }
      // One in 64 of 2,000; by chance never more than a quarter, nor none at all.
      CHECK(strangers > 0);
      CHECK(strangers < 500);
      ends.near.carrier->unguard();
      send_naming(*ends.far.carrier, ends.near_as_peer, 6, 100);
      CHECK(frames_at(*ends.near.carrier, 100).size() == 100);
    }
  }
}

TEST_CASE("more connections than a guard knows are not guarded", "[l2][udp]") {
  Ends ends("127.0.0.1");
  CHECK_FALSE(ends.near.carrier->guard(std::vector<uint32_t>(kMostGuarded + 1, 7), 64));
  send_naming(*ends.far.carrier, ends.near_as_peer, 6, 100);
  CHECK(frames_at(*ends.near.carrier, 100).size() == 100);
}

}  // namespace
}  // namespace sluice::l2
