// Everything of the library over AF_XDP, between the two ends of a veth pair: whole, beside packet
// sockets and all other traffic. What is refused: xdp_refusals_test.cc.
#include <catch2/catch.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/l2/carrier/xdp_carrier.h>
#include <sluice/l2/carrier/xdp_interface.h>
#include <sluice/select/open.h>

#include "kernel_compat/slp/slp_wire.h"
#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/l2/xdp_cable.h"
#include "tests/support/audit.h"
#include "tests/support/in_child.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

std::string program_at_right() {
  std::string found;
  far_node()->inside([&] { found = program_at("right"); });
  return found;
}
TEST_CASE("messages and one-sided access cross by AF_XDP at MTU 1280, 1400, 1500 and 3000",
          "[l2][xdp]") {
  NEEDS_XDP();
  for (int mtu : {1280, 1400, 1500, 3000}) {
    NothingLeftBehind audit;
    INFO("MTU " << mtu);
    REQUIRE(set_both_mtus(mtu));
    Two two(by_xdp());
    CHECK(two.listener.address().starts_with("l2://xdp/right/02:00:00:00:00:0b:"));
    CHECK(two.client.info().path.path == Path::kXdp);
    CHECK(two.client.info().path.copies_per_fetch == 4);
    two.exchange_everything(Path::kXdp);
    two.say_goodbye();
  }
  REQUIRE(set_both_mtus(1500));
}

TEST_CASE("an end with AF_XDP and one with packet sockets understand each other", "[l2][xdp]") {
  NEEDS_XDP();
  for (bool near_by_xdp : {false, true}) {
    NothingLeftBehind audit;
    INFO((near_by_xdp ? "connects by AF_XDP" : "listens by AF_XDP"));
    TwoOptions options = by_xdp();
    options.listen_at = near_by_xdp ? "l2://right:0" : "l2://xdp/right:0";
    const std::string near = near_by_xdp ? "xdp/left" : "left";
    options.way = [near](Context&, const std::string& listening) { return by(near, listening); };
    Two two(options);
    for (size_t size : {size_t{64}, size_t{300'000}}) two.exchange_messages(size);
    CHECK(two.client.info().path.path == (near_by_xdp ? Path::kXdp : Path::kPacket));
    CHECK(two.server.info().path.path == (near_by_xdp ? Path::kPacket : Path::kXdp));
    two.say_goodbye();
  }
}

TEST_CASE("the program is there as long as a port is, and connections share it", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  CHECK(program_at("left").empty());
  {
    Two two(by_xdp());
    const std::string first = program_at("left");
    CHECK(first.starts_with("'sluice_slp' (id "));
    CHECK(program_at_right().starts_with("'sluice_slp' (id "));
    for (int i = 0; i < 3; ++i) two.exchange_anew();
    auto [mine, theirs] = two.connect_again();
    CHECK(program_at("left") == first);
    two.exchange_messages(64);
  }
  CHECK(program_at("left").empty());
  CHECK(program_at_right().empty());
}

// Threads of one process, each with its context.
TEST_CASE("contexts of one process share an interface", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  Two one(by_xdp());
  Two other(by_xdp());
  CHECK(one.listener.address() != other.listener.address());
  for (int i = 0; i < 20; ++i) {
    one.exchange_messages(10'000);
    other.exchange_messages(10'000);
  }
}

TEST_CASE("an interface is opened while another thread closes it", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  constexpr int kRounds = 40;
  constexpr Duration kStep = std::chrono::microseconds(100);
  std::atomic<int> closing{0};
  std::string refused;
  // A little later in each round, so that some come while the program is detached.
  std::thread other([&] {
    for (int round = 1; round <= kRounds; ++round) {
      while (closing < round) {}
      for (const Instant begin = after(now(), kStep * (round % 8)); now() < begin;) {}
      auto port = l2::open_xdp_carrier("left", 0);
      if (!port.ok()) refused = port.status().to_string();
      closing = -round;
      while (closing == -round) {}
    }
  });
  for (int round = 1; round <= kRounds; ++round) {
    {
      auto port = l2::open_xdp_carrier("left", 0);
      if (!port.ok()) refused = port.status().to_string();
      closing = round;
    }
    while (closing != -round) {}
    closing = 0;
  }
  other.join();
  CHECK(refused == "");
}

TEST_CASE("more connections than an interface has sockets for are refused, and then taken again",
          "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  constexpr size_t kMost = l2::XdpInterface::kLargePorts + l2::XdpInterface::kSmallPorts;
  std::unique_ptr<Context> context = std::move(open_context({})).value();
  std::vector<Listener> listeners;
  for (size_t i = 0; i < kMost; ++i) {
    auto made = context->listen("l2://xdp/left:0");
    INFO(made.status().to_string());
    REQUIRE(made.ok());
    listeners.push_back(std::move(*made));
  }
  const Status refused = context->listen("l2://xdp/left:0").status();
  CHECK(refused == Code::kTryAgain);
  CHECK(refused.detail().find("36 ports") != std::string_view::npos);
  CHECK(context->listen("l2://left:0").ok());
  listeners.pop_back();
  CHECK(context->listen("l2://xdp/left:0").ok());
}

TEST_CASE("a port is taken for packet sockets as well, and the other way round", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  std::unique_ptr<Context> context = std::move(open_context({})).value();
  for (const auto& [first, second] :
       {std::pair{"l2://xdp/left:77", "l2://left:77"}, {"l2://left:77", "l2://xdp/left:77"}}) {
    auto taken = context->listen(first);
    REQUIRE(taken.ok());
    const Status refused = context->listen(second).status();
    CHECK(refused == Code::kInvalidArgument);
    CHECK(refused.detail().find("port 77 of left is taken") != std::string_view::npos);
  }
}

// ---- what else is on the interface

int udp_socket(const char* address, uint16_t port) {
  int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_port = htons(port);
  REQUIRE(::inet_pton(AF_INET, address, &own.sin_addr) == 1);
  REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof(own)) == 0);
  return fd;
}

sockaddr_in far_at(uint16_t port) {
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(port);
  ::inet_pton(AF_INET, "10.7.0.2", &there.sin_addr);
  return there;
}

bool readable(int fd) {
  pollfd waiting{fd, POLLIN, 0};
  return ::poll(&waiting, 1, 20'000) == 1;
}

void check_udp(int near, int far) {
  const sockaddr_in there = far_at(9001);
  REQUIRE(::sendto(near, "datagram", 8, 0, reinterpret_cast<const sockaddr*>(&there),
                   sizeof(there)) == 8);
  REQUIRE(readable(far));
  std::array<char, 16> came{};
  CHECK(::recv(far, came.data(), came.size(), 0) == 8);
}

void check_tcp(int listener) {
  const sockaddr_in there = far_at(9002);
  int near = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(::connect(near, reinterpret_cast<const sockaddr*>(&there), sizeof(there)) == 0);
  REQUIRE(readable(listener));
  int far = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  const std::vector<char> sent(100'000, 'x');
  REQUIRE(::send(near, sent.data(), sent.size(), 0) == 100'000);
  ::shutdown(near, SHUT_WR);
  size_t came = 0;
  std::array<char, 65536> room;
  for (ssize_t step; (step = ::recv(far, room.data(), room.size(), 0)) > 0;)
    came += static_cast<size_t>(step);
  CHECK(came == sent.size());
  ::close(near);
  ::close(far);
}

void check_ping() {
  int fd = ::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP);
  REQUIRE(fd >= 0);
  icmphdr echo{};
  echo.type = ICMP_ECHO;
  echo.checksum = htons(static_cast<uint16_t>(~(ICMP_ECHO << 8)));
  const sockaddr_in there = far_at(0);
  REQUIRE(::sendto(fd, &echo, sizeof(echo), 0, reinterpret_cast<const sockaddr*>(&there),
                   sizeof(there)) == ssize_t{sizeof(echo)});
  REQUIRE(readable(fd));
  std::array<uint8_t, 64> came{};
  REQUIRE(::recv(fd, came.data(), came.size(), 0) == 28);
  CHECK(came[20] == ICMP_ECHOREPLY);
  ::close(fd);
}

TEST_CASE("pings, datagrams, TCP and SLP of other ports pass beside it", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  REQUIRE(run("ip address add 10.7.0.1/24 dev left"));
  REQUIRE(far_node()->run_inside("ip address add 10.7.0.2/24 dev right"));
  {
    Two two(by_xdp());
    Two ring({.node = far_node()});
    int far_udp = -1, far_tcp = -1, near_udp = udp_socket("10.7.0.1", 0);
    far_node()->inside([&] {
      far_udp = udp_socket("10.7.0.2", 9001);
      far_tcp = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const sockaddr_in own = far_at(9002);
      REQUIRE(::bind(far_tcp, reinterpret_cast<const sockaddr*>(&own), sizeof(own)) == 0);
      REQUIRE(::listen(far_tcp, 1) == 0);
    });
    for (int i = 0; i < 20; ++i) {
      two.exchange_messages(10'000, Path::kXdp);
      ring.exchange_messages(10'000);
      check_udp(near_udp, far_udp);
      check_ping();
      check_tcp(far_tcp);
    }
    for (int fd : {far_udp, far_tcp, near_udp}) ::close(fd);
  }
  REQUIRE(run("ip address flush dev left"));
  REQUIRE(far_node()->run_inside("ip address flush dev right"));
}

TEST_CASE("frames of others, groups, questions and other versions are left to the kernel",
          "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  auto opened = l2::open_xdp_carrier("left", 0);
  REQUIRE(opened.ok());
  l2::ReceiveRoom room;
  std::unique_ptr<RawWire> far;
  far_node()->inside([&] { far = std::make_unique<RawWire>("right"); });
  RawWire passed("left");
  REQUIRE((far->open() && passed.open()));
  auto frame = [&](Mac to, uint16_t type, uint8_t first, uint16_t port, size_t bytes) {
    std::vector<uint8_t> made(14 + bytes);
    std::copy(to.begin(), to.end(), made.begin());
    const Mac from = mac_number(11);
    std::copy(from.begin(), from.end(), made.begin() + 6);
    made[12] = static_cast<uint8_t>(type >> 8);
    made[13] = static_cast<uint8_t>(type);
    if (bytes > 0) made[14] = first;
    if (bytes > 5) slp_store16(&made[18], port);
    return made;
  };
  const Mac own = mac_number(10), other = mac_number(12), distant = {6, 0, 0, 0, 0, 10};
  const Mac all = {255, 255, 255, 255, 255, 255};
  const uint8_t version = SLP_VERSION << 5;
  const uint16_t port = opened->port;
  struct Case {
    const char* what;
    std::vector<uint8_t> bytes;
    bool ours, seen;
  };
  const std::vector<Case> cases = {
      {"ours", frame(own, SLP_ETHERTYPE, version, port, 60), true, false},
      {"another port", frame(own, SLP_ETHERTYPE, version, port ^ 1, 60), false, true},
      {"another version", frame(own, SLP_ETHERTYPE, 2 << 5, port, 60), false, true},
      {"a question", frame(own, SLP_ETHERTYPE, version | SLP_FIND, port, 112), false, true},
      {"to everybody", frame(all, SLP_ETHERTYPE, version, port, 60), false, true},
      {"to another station", frame(other, SLP_ETHERTYPE, version, port, 60), false, true},
      {"to one whose address ends alike", frame(distant, SLP_ETHERTYPE, version, port, 60), false,
       true},
      {"another EtherType", frame(own, 0x88b6, version, port, 60), false, false},
      {"too short for a port", frame(own, SLP_ETHERTYPE, version, port, 5), false, true},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    REQUIRE(far->send(c.bytes));
    CHECK(opened->carrier->receive(room).size() == (c.ours ? 1u : 0u));
    opened->carrier->release();
    CHECK(passed.receive().empty() != c.seen);
  }
  // Lengths that only say that they are ours.
  for (size_t bytes : {size_t{6}, size_t{39}}) {
    REQUIRE(far->send(frame(own, SLP_ETHERTYPE, version, port, bytes)));
    CHECK(opened->carrier->receive(room).empty());
  }
}

std::vector<uint8_t> slp_frame_to(uint16_t port) {
  std::vector<uint8_t> made(14 + 60);
  const Mac to = mac_number(10), from = mac_number(11);
  std::copy(to.begin(), to.end(), made.begin());
  std::copy(from.begin(), from.end(), made.begin() + 6);
  made[12] = SLP_ETHERTYPE >> 8;
  made[13] = SLP_ETHERTYPE & 0xff;
  made[14] = SLP_VERSION << 5;
  slp_store16(&made[18], port);
  return made;
}

TEST_CASE("what came for a port is not the next one's that has its socket", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  std::unique_ptr<RawWire> far;
  far_node()->inside([&] { far = std::make_unique<RawWire>("right"); });
  auto other = l2::open_xdp_carrier("left", 0);  // the interface stays open
  REQUIRE(other.ok());
  auto before = l2::open_xdp_carrier("left", 0);
  REQUIRE(before.ok());
  const uint16_t port = before->port;
  for (int i = 0; i < 100; ++i) REQUIRE(far->send(slp_frame_to(port)));
  before->carrier.reset();
  auto next = l2::open_xdp_carrier("left", 0);
  REQUIRE(next.ok());
  RawWire passed("left");
  REQUIRE(far->send(slp_frame_to(port)));
  CHECK_FALSE(passed.receive().empty());
  REQUIRE(far->send(slp_frame_to(next->port)));
  l2::ReceiveRoom room;
  CHECK(next->carrier->receive(room).size() == 1);
  next->carrier->release();
  CHECK(next->carrier->receive(room).empty());
}

TEST_CASE("a port that nobody reads takes no places from the others", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  l2::OpenedCarrier far;
  far_node()->inside([&] { far = std::move(l2::open_xdp_carrier("right", 0)).value(); });
  std::vector<l2::OpenedCarrier> stalled;
  for (size_t i = 0; i < 8; ++i)
    stalled.push_back(std::move(l2::open_xdp_carrier("left", 0)).value());
  l2::OpenedCarrier read = std::move(l2::open_xdp_carrier("left", 0)).value();
  std::vector<uint8_t> memory(100);
  memory[0] = SLP_VERSION << 5;
  const l2::PeerAddress to = read.carrier->own_address();
  l2::FrameOut frame{.to = &to, .pieces = {}, .count = 1};
  frame.pieces[0] = {memory.data(), memory.size()};
  auto send = [&](uint16_t port) {
    slp_store16(&memory[4], port);
    far.carrier->send({&frame, 1});
  };
  for (const auto& one : stalled)
    for (int i = 0; i < 2000; ++i) send(one.port);
  l2::ReceiveRoom room;
  for (int i = 0; i < 500; ++i) {
    send(read.port);
    REQUIRE(read.carrier->receive(room).size() == 1);
    read.carrier->release();
  }
  size_t kept = 0;
  do {
    kept += stalled[0].carrier->receive(room).size();
    stalled[0].carrier->release();
  } while (!room.drained);
  CHECK(kept == l2::XdpInterface::kLargeRing);
}

TEST_CASE("generic XDP carries everything where it is asked for", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  Setting generic("SLUICE_L2_XDP_GENERIC", "1");
  REQUIRE(run("ip link set lo up"));
  Two two({.listen_at = "l2://xdp/lo:0",
           .way = [](Context&, const std::string& listening) { return listening; }});
  two.exchange_everything(Path::kXdp);
}

TEST_CASE("an interface that is gone ends the connection in its time", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  REQUIRE(add_cable("one", 20, "other", 21));
  Two two({.listen_at = "l2://xdp/other:0", .way = [](Context&, const std::string& listening) {
             return "l2://xdp/one" + listening.substr(listening.rfind('/'));
           }});
  two.exchange_messages(300'000, Path::kXdp);
  remove_cable("one");
  REQUIRE(two.until([&] {
    return two.client.state() == EndpointState::kClosed &&
           two.server.state() == EndpointState::kClosed;
  }));
}

TEST_CASE("a child that lets go of what it inherited takes nothing from its parent", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  static std::optional<l2::OpenedCarrier> inherited;
  Two two(by_xdp());
  inherited.emplace(std::move(l2::open_xdp_carrier("left", 0)).value());
  CHECK(in_child([] {
          inherited.reset();
          return l2::open_xdp_carrier("left", 0).code() == Code::kTryAgain ? 0 : 2;
        }) == 0);
  const std::vector<uint8_t> frame = slp_frame_to(inherited->port);
  std::unique_ptr<RawWire> far;
  far_node()->inside([&] { far = std::make_unique<RawWire>("right"); });
  REQUIRE(far->send(frame));
  l2::ReceiveRoom room;
  CHECK(inherited->carrier->receive(room).size() == 1);
  inherited.reset();
  two.exchange_messages(300'000, Path::kXdp);
}

// What is mapped here.
std::vector<std::pair<uintptr_t, uintptr_t>> mappings() {
  std::vector<std::pair<uintptr_t, uintptr_t>> all;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t dash = line.find('-');
    all.emplace_back(std::stoull(line, nullptr, 16),
                     std::stoull(line.substr(dash + 1), nullptr, 16));
  }
  return all;
}

TEST_CASE("a child that lets go of what it inherited keeps its own memory", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  static std::optional<l2::OpenedCarrier> inherited;
  static std::vector<std::pair<uintptr_t, uintptr_t>> of_parent;
  inherited.emplace(std::move(l2::open_xdp_carrier("left", 0)).value());
  of_parent = mappings();
  CHECK(in_child([] {
          // Wherever the parent has memory and the child has none.
          std::vector<std::pair<void*, size_t>> own;
          for (auto [start, end] : of_parent) {
            void* at = ::mmap(reinterpret_cast<void*>(start), end - start, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            if (at != MAP_FAILED) own.emplace_back(at, end - start);
          }
          if (own.size() < 6) return 2;  // frames, five rings
          inherited.reset();
          for (auto [at, bytes] : own)
            if (::msync(at, bytes, MS_ASYNC) != 0) return 3;  // a part is not mapped
          return 0;
        }) == 0);
  inherited.reset();
}

TEST_CASE("a pulled cable ends the connection in its time", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  Two two(by_xdp());
  REQUIRE(far_node()->run_inside("ip link set right down"));
  REQUIRE(two.until([&] { return two.client.state() == EndpointState::kClosed; }));
  REQUIRE(far_node()->run_inside("ip link set right up"));
}

}  // namespace
}  // namespace sluice::test
