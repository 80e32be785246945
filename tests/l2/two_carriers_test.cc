// One connection by two carriers: messages as raw frames, memory in UDP. Over a cable between
// two namespaces, with addresses and without.
#include <catch2/catch.hpp>

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

#define NEEDS_WIRE() \
  if (far_node() == nullptr) return skip("netns", kNoNetwork)

// The addresses of a case; both ends have none before and after it.
struct Addresses {
  Addresses(bool left, bool right) {
    if (left) REQUIRE(run("ip address add 10.9.0.1/24 dev left"));
    if (right) REQUIRE(far_node()->run_inside("ip address add 10.9.0.2/24 dev right"));
  }
  ~Addresses() {
    (void)run("ip address flush dev left");
    (void)far_node()->run_inside("ip address flush dev right");
  }
};

// Whoever begins something over the cable meanwhile looks like another machine.
struct OtherSource {
  OtherSource() {
    REQUIRE((run("ip address add 10.9.0.3/24 dev left") &&
             run("ip route add 10.9.0.2/32 dev left src 10.9.0.3")));
  }
  ~OtherSource() { (void)run("ip route del 10.9.0.2/32 dev left"); }
};

// The near end reaches the far one's address by no IP.
struct NoWay {
  NoWay() { REQUIRE(run("ip route add blackhole 10.9.0.2/32")); }
  ~NoWay() { (void)run("ip route del blackhole 10.9.0.2/32"); }
};

// Two ends over the cable, connected; what was counted since before they met.
struct Scene {
  explicit Scene(bool left = true, bool right = true) : addresses(left, right) {}
  bool joined() {
    return two.until([&] { return grown("l2.second_sessions") == 1; });
  }
  void expect_two() {
    REQUIRE(joined());
    CHECK(two.client.info().reason.find("memory goes in UDP, to 10.9.0.2:") != std::string::npos);
    two.exchange_messages(64, Path::kPacket);
    two.exchange_messages(300'000, Path::kUdp);
    two.exchange_messages(8 << 20, Path::kUdp);
    two.exchange_tensors(1 << 20);
  }

  NothingLeftBehind audit;
  Addresses addresses;
  Grown grown;
  Two two{{.node = far_node(), .far_runs_there = true}};
};

TEST_CASE("where both ends have addresses messages go as frames and memory in UDP", "[l2]") {
  NEEDS_WIRE();
  Scene scene;
  scene.expect_two();
  scene.two.say_goodbye();
}

TEST_CASE("with a secret both sessions are sealed", "[l2]") {
  NEEDS_WIRE();
  char file[] = "/tmp/sluice-secret-XXXXXX";
  int fd = ::mkstemp(file);
  REQUIRE(::write(fd, "sixteen bytes or more", 21) == 21);
  ::close(fd);
  Setting secret("SLUICE_L2_SECRET_FILE", file);
  Scene scene;
  ::unlink(file);
  REQUIRE(scene.joined());
  CHECK(scene.two.client.info().path.copies_per_fetch == 5);
  scene.two.exchange_messages(64);
  scene.two.exchange_tensors(1 << 20);
}

TEST_CASE("a listener that is closed at once does not take the second session with it", "[l2]") {
  NEEDS_WIRE();
  Scene scene;
  scene.two.listener = Listener();
  scene.expect_two();
}

// UDP sockets of this process.
size_t udp_sockets() {
  size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    int domain = 0, type = 0;
    socklen_t size = sizeof(int);
    if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 ||
        ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0)
      continue;
    count += (domain == AF_INET || domain == AF_INET6) && type == SOCK_DGRAM;
  }
  return count;
}

TEST_CASE("a listener that is closed keeps no port for a second session that never comes", "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Addresses addresses(true, true);
  NoWay none;
  Two two{{.node = far_node(), .far_runs_there = true}};
  INFO(two.client.info().reason);
  two.listener = Listener();
  CHECK(udp_sockets() == 1);
  CHECK(two.until([&] { return udp_sockets() == 0; }, in(std::chrono::seconds(20))));
  two.exchange_messages(300'000, Path::kPacket);
}

TEST_CASE("without the means for UDP everything goes as frames, and it says why", "[l2]") {
  NEEDS_WIRE();
  struct Case {
    bool left, right, wanted;
    const char* says;
  };
  for (Case c : {Case{false, false, true, "the peer offers no UDP"},
                 {true, false, true, "the peer offers no UDP"},
                 {false, true, true, "10.9.0.2"},
                 {true, true, false, nullptr}}) {
    INFO(c.left << c.right << c.wanted);
    Setting bulk("SLUICE_L2_BULK", c.wanted ? "" : "frames");
    Scene scene(c.left, c.right);
    Two& two = scene.two;
    INFO(two.client.info().reason);
    bool said =
        two.client.info().reason.find("memory goes as raw frames, too") != std::string::npos;
    CHECK(said == c.wanted);
    if (c.says != nullptr) CHECK(two.client.info().reason.find(c.says) != std::string::npos);
    two.exchange_messages(64, Path::kPacket);
    two.exchange_messages(300'000, Path::kPacket);
    two.exchange_tensors(300'000);
    CHECK(scene.grown("l2.second_sessions") == 0);
  }
}

// Whoever knows the port of second sessions may begin some, from an address of his own.
std::vector<Endpoint> some_strangers(Two& two, int count) {
  OtherSource elsewhere;
  std::string reason = two.client.info().reason;
  std::string place = "l2://udp/10.9.0.2:" + reason.substr(reason.rfind(':') + 1);
  std::vector<Endpoint> strangers;
  for (int i = 0; i < count; ++i) {
    auto stranger = two.near->connect(place, {.timeout = std::chrono::seconds(1)});
    if (stranger.ok()) strangers.push_back(std::move(*stranger));
  }
  return strangers;
}

TEST_CASE(
    "strangers at the port of second sessions are sent away, and take nobody's place for long",
    "[l2]") {
  NEEDS_WIRE();
  Scene scene;
  scene.expect_two();
  Two& two = scene.two;
  std::vector<Endpoint> strangers = some_strangers(two, 130);
  REQUIRE(strangers.size() >= 100);
  // All places may be theirs: they are those of one machine.
  two.connect_again();
  CHECK(two.until([&] { return scene.grown("l2.second_sessions") == 2; }));
  // Who says something belongs to nobody; the others have said nothing in time.
  REQUIRE(strangers.back().send(1, filled(*two.near, 10, 1).freeze(), {.deadline = soon()}).ok());
  REQUIRE(two.until([&] { return strangers.back().state() == EndpointState::kClosed; },
                    in(std::chrono::seconds(4))));
  CHECK(two.until([&] {
    return std::all_of(strangers.begin(), strangers.end(),
                       [](const Endpoint& e) { return e.state() == EndpointState::kClosed; });
  }));
  two.exchange_messages(300'000, Path::kUdp);
  two.connect_again();
  CHECK(two.until([&] { return scene.grown("l2.second_sessions") == 3; }));
}

TEST_CASE("strangers do not end connections that nobody has accepted yet", "[l2]") {
  NEEDS_WIRE();
  Scene scene;
  scene.expect_two();
  Two& two = scene.two;
  std::vector<Endpoint> near, far;
  for (int i = 0; i < 70; ++i) near.push_back(std::move(two.near->connect(two.address)).value());
  // There is no room for all of these, though they are fewer.
  std::vector<Endpoint> strangers = some_strangers(two, 65);
  for (int i = 0; i < 70; ++i) far.push_back(std::move(two.listener.try_accept()).value());
  CHECK(two.until([&] { return scene.grown("l2.second_sessions") == 71; },
                  in(std::chrono::seconds(10))));
  for (const auto* side : {&near, &far}) {
    CHECK(std::all_of(side->begin(), side->end(),
                      [](const Endpoint& e) { return e.state() == EndpointState::kConnected; }));
  }
  two.exchange_messages(300'000, Path::kUdp);
}

TEST_CASE("when UDP stops working the connection ends, with every operation", "[l2]") {
  NEEDS_WIRE();
  Scene scene;
  Two& two = scene.two;
  REQUIRE(scene.joined());
  two.exchange_messages(300'000, Path::kUdp);
  REQUIRE(far_node()->run_inside("ip address flush dev right"));
  Box sent, received;
  auto room = two.far->allocate({300'000}, uint8);
  REQUIRE(room.ok());
  REQUIRE(two.server.receive({.tag = 5}, std::move(*room), {.sink = &received, .deadline = soon()})
              .ok());
  REQUIRE(two.client
              .send(5, filled(*two.near, 300'000, 1).freeze(),
                    {.sink = &sent, .deadline = soon(), .level = Level::kPlaced})
              .ok());
  CHECK(two.until([&] { return sent.all.size() == 1 && received.all.size() == 1; }));
  CHECK(two.until([&] {
    return two.client.state() == EndpointState::kClosed &&
           two.server.state() == EndpointState::kClosed;
  }));
  REQUIRE(received.all.size() == 1);
  CHECK(received.all[0].status == Code::kUnreachable);
}

}  // namespace
}  // namespace sluice::test
