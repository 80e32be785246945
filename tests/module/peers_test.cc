// What one MAC address can take of a socket that several talk to: sessions, its receive queue, its
// budget of pulls. Others have their part beside it.
#include <catch2/catch.hpp>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "tests/module/memory.h"
#include "tests/module/packet_peer.h"
#include "tests/module/wire.h"
#include "tests/support/skip.h"

namespace sluice::module_test {
namespace {

bool becomes(const std::function<bool()>& true_now) {
  for (int tries = 0; tries < 20000; ++tries) {
    if (true_now()) return true;
    ::poll(nullptr, 0, 1);
  }
  return false;
}

bool have_macvlan() {
  ::setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
  return std::system("modprobe macvlan 2>/dev/null || [ -d /sys/module/macvlan ]") == 0;
}
constexpr const char* kNoMacvlan = "this kernel gives an interface one address";

// One more MAC address at an end of the wire.
struct Address {
  uint32_t ifindex = 0;
  uint8_t mac[6] = {};
  Address(const End& end, const std::string& name) {
    end.space.ip("link add link end0 name " + name + " type macvlan mode bridge");
    end.space.ip("link set " + name + " up");
    end.space.run([&] {
      Fd any(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      ifreq request{};
      std::strcpy(request.ifr_name, name.c_str());
      REQUIRE(::ioctl(any.value(), SIOCGIFHWADDR, &request) == 0);
      std::memcpy(mac, request.ifr_hwaddr.sa_data, 6);
      ifindex = ::if_nametoindex(name.c_str());
    });
  }
  sockaddr_sluice seen(const End& to, uint16_t port) const {
    sockaddr_sluice out = to.local(port);
    out.ifindex = ifindex;
    std::memcpy(out.mac, to.mac, 6);
    return out;
  }
};

int option(int fd, int name, int value) {
  return ::setsockopt(fd, SOL_SLUICE, name, &value, sizeof(value)) == 0 ? 0 : errno;
}

// Calls that are not waited for.
std::vector<Fd> call_often(const Namespace& space, const sockaddr_sluice& to, int times) {
  std::vector<Fd> out;
  for (int i = 0; i < times; ++i) {
    out.push_back(open_socket(space, SOCK_NONBLOCK));
    REQUIRE(connect_to(out.back().value(), to) == EINPROGRESS);
  }
  return out;
}

TEST_CASE(
    "one MAC address begins a half of a socket's sessions, and the last quarter is for those that "
    "have none") {
  if (!have_macvlan()) return test::skip("macvlan", kNoMacvlan);
  Module module;
  Wire wire;
  Address second(wire.a, "end1"), third(wire.a, "end2");
  Fd server = bound_socket(wire.b, 7000);
  REQUIRE(option(server.value(), SLUICE_PEERS, 16) == 0);
  auto begun = [&] { return counter(wire.b.space, "sessions_begun"); };
  auto refused = [&] { return counter(wire.b.space, "callers_refused"); };
  auto loud = call_often(wire.a.space, seen_from(wire.a, wire.b, 7000), 12);
  CHECK(becomes([&] { return begun() == 8 && refused() > 0; }));
  // A fifth of the second's would be of the last quarter.
  std::vector<Fd> others;
  for (int i = 0; i < 4; ++i) {
    others.push_back(open_socket(wire.a.space));
    CHECK(connect_to(others.back().value(), second.seen(wire.b, 7000)) == 0);
  }
  uint64_t before = refused();
  auto more = call_often(wire.a.space, second.seen(wire.b, 7000), 1);
  Fd last = open_socket(wire.a.space);
  CHECK(connect_to(last.value(), third.seen(wire.b, 7000)) == 0);
  REQUIRE(send_on(last.value(), "hello") == 5);
  CHECK(receive(server.value()).text == "hello");
  CHECK(becomes([&] { return refused() > before; }));
  CHECK(begun() == 13);
  // Who has gone makes room for others of his address.
  loud.clear();
  CHECK(becomes([&] { return begun() >= 14; }));
  CHECK(option(server.value(), SLUICE_PEERS_OF_ONE, SLUICE_MAX_PEERS + 1) == EINVAL);
}

TEST_CASE("one MAC address fills a half of a receive queue, and another is still heard") {
  if (!have_macvlan()) return test::skip("macvlan", kNoMacvlan);
  Module module;
  Wire wire;
  Address second(wire.a, "end1");
  Fd server = bound_socket(wire.b, 7000, SOCK_NONBLOCK);
  const std::string large(5000, 'x');
  std::vector<Fd> loud;
  for (int i = 0; i < 24; ++i) {
    loud.push_back(open_socket(wire.a.space));
    REQUIRE(connect_to(loud.back().value(), seen_from(wire.a, wire.b, 7000)) == 0);
    while (send_on(loud.back().value(), large, MSG_DONTWAIT) > 0) {}
  }
  CHECK(becomes([&] { return counter(wire.b.space, "messages_held_back") >= 24; }));
  // What waits in all sessions would fill the queue.
  for (Fd& one : loud)
    while (send_on(one.value(), large, MSG_DONTWAIT) > 0) {}
  uint64_t queued = counter(wire.b.space, "messages_in");
  Fd other = open_socket(wire.a.space);
  REQUIRE(connect_to(other.value(), second.seen(wire.b, 7000)) == 0);
  REQUIRE(send_on(other.value(), "hello") == 5);
  CHECK(becomes([&] { return counter(wire.b.space, "messages_in") == queued + 1; }));
  bool heard = false;
  for (uint64_t i = 0; i <= queued; ++i) {
    Received got = receive(server.value());
    heard = heard || (got.text == "hello" && std::memcmp(got.from.mac, second.mac, 6) == 0);
  }
  CHECK(heard);
  // The others go on: nothing was lost.
  std::set<uint16_t> ports;
  CHECK(becomes([&] {
    for (Received got; (got = receive(server.value())).result > 0;) ports.insert(got.from.port);
    return ports.size() == loud.size();
  }));
}

// Those that come first in the socket's table would have all the room there is, each time.
TEST_CASE(
    "of many sessions that fill a receive queue each is heard, whichever of them came first") {
  constexpr int kSessions = 32, kMessages = 640;
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000);
  std::vector<Fd> all;
  for (int i = 0; i < kSessions; ++i) {
    all.push_back(open_socket(wire.a.space));
    REQUIRE(connect_to(all.back().value(), seen_from(wire.a, wire.b, 7000)) == 0);
  }
  const std::string large(5000, 'x');
  std::map<uint16_t, int> heard;
  for (int i = 0; i < kMessages; ++i) {
    for (Fd& one : all)
      while (send_on(one.value(), large, MSG_DONTWAIT) > 0) {}
    ::poll(nullptr, 0, 1);  // all wait again before one is read
    Received got = receive(server.value());
    REQUIRE(got.result > 0);
    ++heard[got.from.port];
  }
  CHECK(heard.size() == kSessions);
  for (auto [port, times] : heard) CHECK(times >= kMessages / kSessions / 4);
}

TEST_CASE("of many sessions that fill a slow device's queue each sends, whichever came first") {
  constexpr int kPeers = 8, kMessages = 240;
  ::setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
  Module module;
  Wire wire;
  Fd sender = bound_socket(wire.a, 7000);
  std::vector<Fd> peers;
  for (uint16_t port = 7001; port <= 7000 + kPeers; ++port) {
    peers.push_back(bound_socket(wire.b, port));
    REQUIRE(send_to(sender.value(), "hello", seen_from(wire.a, wire.b, port)) == 5);
    REQUIRE(receive(peers.back().value()).text == "hello");
  }
  // Room for some frames, which any one session fills.
  int room = 1;
  REQUIRE(::setsockopt(sender.value(), SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)) == 0);
  REQUIRE(wire.a.space.run([] {
    return std::system(
        "modprobe sch_tbf 2>/dev/null; tc qdisc replace dev end0 root tbf rate 8mbit burst 10000 "
        "limit 100000000");
  }) == 0);
  const std::string large(5000, 'x');
  std::vector<int> heard(kPeers);
  int all = 0;
  CHECK(becomes([&] {
    for (uint16_t i = 0; i < kPeers; ++i) {
      auto to = seen_from(wire.a, wire.b, static_cast<uint16_t>(7001 + i));
      while (send_to(sender.value(), large, to, MSG_DONTWAIT) > 0) {}
      while (receive(peers[i].value(), MSG_DONTWAIT).result > 0) ++heard[i], ++all;
    }
    return all >= kMessages;
  }));
  for (int times : heard) CHECK(times >= kMessages / kPeers / 4);
}

TEST_CASE("sessions that have ended make room where a socket's last places are wanted") {
  Module module;
  Wire wire;
  Fd socket = bound_socket(wire.a, 7000);
  REQUIRE(option(socket.value(), SLUICE_PEERS, 4) == 0);
  REQUIRE(option(socket.value(), SLUICE_DEAD_MS, 100) == 0);
  // Nobody is there, and nobody asks what became of them.
  for (uint16_t port = 7100; port < 7104; ++port)
    REQUIRE(send_to(socket.value(), "x", seen_from(wire.a, wire.b, port)) == 1);
  CHECK(becomes([&] { return counter(wire.a.space, "sessions_ended") == 4; }));
  REQUIRE(option(socket.value(), SLUICE_DEAD_MS, 3000) == 0);
  // Those that the socket calls,
  std::vector<Fd> servers;
  for (uint16_t port = 7000; port < 7002; ++port) {
    servers.push_back(bound_socket(wire.b, port));
    CHECK(send_to(socket.value(), "hello", seen_from(wire.a, wire.b, port)) == 5);
    CHECK(receive(servers.back().value()).text == "hello");
  }
  // and who calls it.
  Fd caller = open_socket(wire.b.space);
  CHECK(connect_to(caller.value(), seen_from(wire.b, wire.a, 7000)) == 0);
}

TEST_CASE("sessions that have ended make room where the machine's last places are wanted") {
  Module module("max_sessions=4");
  Wire wire;
  Fd socket = bound_socket(wire.a, 7000);
  REQUIRE(option(socket.value(), SLUICE_DEAD_MS, 100) == 0);
  for (uint16_t port = 7100; port < 7108; ++port) {
    REQUIRE(send_to(socket.value(), "x", seen_from(wire.a, wire.b, port)) == 1);
    REQUIRE(becomes([&] { return counter(wire.a.space, "sessions_ended") == port - 7099u; }));
  }
}

TEST_CASE("a peer that brings nothing does not hold the budget of pulls, and others bring theirs") {
  constexpr size_t kBytes = 1 << 20;
  if (!have_macvlan()) return test::skip("macvlan", kNoMacvlan);
  Module module;
  Wire wire;
  Address honest(wire.b, "end1");
  Fd socket = bound_socket(wire.a, 7000), giver = open_socket(wire.b.space);
  REQUIRE(option(socket.value(), SLUICE_DEAD_MS, 3'600'000) == 0);
  Ring ring(socket.value(), 64);
  Pages pages(kBytes), source(kBytes);
  std::memset(source.data(), 0x5a, kBytes);
  uint32_t region = 0, from = 0, handle = 0;
  REQUIRE(register_memory(socket.value(), pages.data(), kBytes, region) == 0);
  REQUIRE(register_memory(giver.value(), source.data(), kBytes, from) == 0);
  // Met, and then it does nothing more.
  PacketPeer idle(wire.b, 7001);
  idle.connect(wire.a.mac, 7000);
  REQUIRE(becomes([&] {
    idle.turn(1);
    return idle.up();
  }));
  sluice_transfer pull{};
  pull.kind = SLUICE_PULL;
  pull.region = region;
  pull.length = kBytes;
  pull.handle = 1;
  pull.peer = seen_from(wire.a, wire.b, 7001);
  for (uint64_t i = 0; i < 16; ++i) {
    pull.user_data = i;
    REQUIRE(transfer(socket.value(), pull) == 0);
  }
  REQUIRE(connect_to(giver.value(), honest.seen(wire.a, 7000)) == 0);
  REQUIRE(send_on(giver.value(), "here I am") == 9);
  pull.peer = receive(socket.value()).from;
  REQUIRE(open_handle(giver.value(), {}, from, 0, kBytes, SLUICE_MAY_READ, handle) == 0);
  pull.handle = handle;
  for (uint64_t i = 100; i < 104; ++i) {
    pull.user_data = i;
    REQUIRE(transfer(socket.value(), pull) == 0);
    auto end = ring.wait();
    REQUIRE(end);
    CHECK(end->user_data == i);
    CHECK(end->status == 0);
  }
  CHECK(pages.data()[kBytes - 1] == 0x5a);
  CHECK(becomes([&] { return counter(wire.a.space, "pulls_stalled") > 0; }));
}

}  // namespace
}  // namespace sluice::module_test
