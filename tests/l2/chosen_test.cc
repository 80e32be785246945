// sluice:// on plain Ethernet: taken where both ends wish it and frames cross, else TCP, with the
// reason. Over a cable between two namespaces; the kernel module's part is in tests/module.
#include <catch2/catch.hpp>

#include <poll.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <tuple>

#include <sluice/select/open.h>

#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

#define NEEDS_WIRE() \
  if (far_node() == nullptr) return skip("netns", kNoNetwork)

constexpr const char* kWish = "SLUICE_ETHERNET";

struct Addresses {
  Addresses() { add(); }
  void add() {
    REQUIRE(run("ip address add 10.9.0.1/24 dev left"));
    REQUIRE(far_node()->run_inside("ip address add 10.9.0.2/24 dev right"));
  }
  // The cable too, with the names and MAC addresses that it had: to the kernel they are other
  // interfaces.
  void make_anew() {
    remove_cable("left");
    REQUIRE(add_cable("left", 10, "right", 11));
    REQUIRE(far_node()->take("right"));
    add();
  }
  ~Addresses() {
    (void)run("ip address flush dev left");
    (void)far_node()->run_inside("ip address flush dev right");
  }
};

// Who listens at `host` may wish Ethernet or not, and so may who connects.
TwoOptions chosen(bool listener_wishes, bool caller_wishes, const std::string& host = "10.9.0.2") {
  ::setenv(kWish, listener_wishes ? "1" : "0", 1);
  return {.node = far_node(),
          .far_runs_there = true,
          .listen_at = "sluice://" + host + ":0",
          .way = [caller_wishes](Context&, const std::string& listening) {
            ::setenv(kWish, caller_wishes ? "1" : "0", 1);
            return listening;
          }};
}

struct Scene {
  explicit Scene(const TwoOptions& options) : two(options) {}
  ~Scene() { ::unsetenv(kWish); }
  bool says(const char* words) { return two.client.info().reason.find(words) != std::string::npos; }

  Grown grown;
  Two two;
};

TEST_CASE("sluice:// takes Ethernet where both ends wish it, for one connection after the other",
          "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Addresses addresses;
  Scene scene(chosen(true, true));
  Two& two = scene.two;
  INFO(two.client.info().reason);
  CHECK(two.client.info().path.path == Path::kPacket);
  CHECK(two.server.info().path.path == Path::kPacket);
  CHECK(scene.says("l2: the peer is a neighbour, and the probe both ways worked; not shm: "));
  CHECK(scene.says("not kmod: the peer has no kernel module there"));
  CHECK(two.server.info().reason.find("l2: a neighbour, which chose it") == 0);
  two.exchange_messages(64, Path::kPacket);
  two.exchange_messages(8 << 20, Path::kUdp);
  two.exchange_tensors(1 << 20);
  two.exchange_anew();
  CHECK(scene.grown("select.chose_packet") == 4);  // at both ends
  two.say_goodbye();
}

TEST_CASE("sluice:// goes by TCP where one end does not wish Ethernet", "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Addresses addresses;
  for (bool listener : {false, true}) {
    INFO("wished by the " << (listener ? "listener" : "caller"));
    Scene scene(chosen(listener, !listener));
    CHECK(scene.two.client.info().path.path == Path::kTcp);
    CHECK(scene.says("not l2: the peer listens for no frames there") == !listener);
    scene.two.exchange_messages(300'000);
    scene.two.say_goodbye();
  }
}

TEST_CASE(
    "sluice:// over Ethernet keeps to what is required, and whom it does not take is not called",
    "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Addresses addresses;
  Scene scene(chosen(true, true));
  auto connected = scene.two.near->connect(
      scene.two.address, {.require = {.max_copies = 2}, .timeout = std::chrono::seconds(10)});
  INFO(connected.status().to_string());
  REQUIRE(connected.ok());
  CHECK(connected->info().path.path == Path::kTcp);
  Endpoint accepted;
  REQUIRE(scene.two.until([&] {
    auto next = scene.two.listener.try_accept();
    if (next.ok()) accepted = std::move(*next);
    return static_cast<bool>(accepted);
  }));
  CHECK(accepted.info().path.path == Path::kTcp);
  scene.two.pass(std::chrono::milliseconds(100));
  CHECK(scene.two.listener.try_accept().code() == Code::kTryAgain);
  CHECK(connected->close(soon()).ok());
  scene.two.say_goodbye();
}

TEST_CASE("sluice:// takes the path that is required of a neighbour, or fails", "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Addresses addresses;
  for (const auto& [wished, path] : {std::pair(true, Path::kPacket), std::pair(true, Path::kTcp),
                                     std::pair(false, Path::kTcp)}) {
    INFO(to_string(path) << ", the listener wishes Ethernet: " << wished);
    Scene scene(chosen(wished, path == Path::kTcp));
    auto connected = scene.two.near->connect(
        scene.two.address, {.require = {.path = path}, .timeout = std::chrono::seconds(10)});
    INFO(connected.status().to_string());
    REQUIRE(connected.ok());
    CHECK(connected->info().path.path == path);
    scene.two.say_goodbye();
  }
  Scene scene(chosen(false, false));
  auto refused = scene.two.near->connect(
      scene.two.address, {.require = {.path = Path::kPacket}, .timeout = std::chrono::seconds(10)});
  INFO(refused.status().to_string());
  CHECK(refused.code() == Code::kUnsupported);
  CHECK_THAT(std::string(refused.status().detail()),
             Catch::Contains("not l2: the peer listens for no frames there"));
  scene.two.say_goodbye();
}

// Where shared memory is there, and would be taken.
TEST_CASE("within one machine sluice:// takes the path that is required, or fails", "[l2]") {
  Two two({.listen_at = "sluice://127.0.0.1:0",
           .way = [](Context&, const std::string& listening) { return listening; }});
  CHECK(two.client.info().path.path == Path::kShm);
  for (const Path path : {Path::kShm, Path::kTcp}) {
    auto connected = two.near->connect(two.address, {.require = {.path = path}});
    INFO(to_string(path) << ": " << connected.status().to_string());
    REQUIRE(connected.ok());
    CHECK(connected->info().path.path == path);
  }
  for (const Path path : {Path::kVerbs, Path::kPacket, Path::kModule}) {
    auto refused = two.near->connect(two.address, {.require = {.path = path}});
    INFO(to_string(path) << ": " << refused.status().to_string());
    CHECK(refused.code() == Code::kUnsupported);
    const std::string demands = "Requirements::path demands " + std::string(to_string(path));
    CHECK_THAT(std::string(refused.status().detail()), Catch::Contains("not shm: " + demands));
    CHECK_THAT(std::string(refused.status().detail()), Catch::Contains("not tcp: " + demands));
  }
  CHECK(
      two.near->connect("tcp" + two.address.substr(6), {.require = {.path = Path::kShm}}).code() ==
      Code::kUnsupported);
  two.say_goodbye();
}

TEST_CASE("a listener of sluice:// serves the path that is required alone", "[l2]") {
  auto context = open_context({});
  REQUIRE(context.ok());
  REQUIRE((*context)->listen("sluice://127.0.0.1:0", {.require = {.path = Path::kShm}}).ok());
  auto refused = (*context)->listen("sluice://127.0.0.1:0", {.require = {.path = Path::kLoopback}});
  CHECK(refused.code() == Code::kUnsupported);
  CHECK_THAT(std::string(refused.status().detail()),
             Catch::Contains("Requirements::path demands loopback"));
}

TEST_CASE("sluice:// goes by TCP to who is no neighbour, and says so", "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Addresses addresses;
  REQUIRE(far_node()->run_inside("ip address add 10.9.1.2/32 dev right"));
  REQUIRE(run("ip route add 10.9.1.2/32 via 10.9.0.2 dev left"));
  Scene scene(chosen(true, true, "10.9.1.2"));
  INFO(scene.two.client.info().reason);
  CHECK(scene.two.client.info().path.path == Path::kTcp);
  CHECK(scene.says("not l2: 10.9.1.2 is no neighbour on left"));
  scene.two.exchange_messages(300'000);
  scene.two.say_goodbye();
  CHECK(run("ip route del 10.9.1.2/32 dev left"));
}

TEST_CASE("sluice:// goes by TCP over IPv6, and says so", "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  REQUIRE(run("ip address add fd09::1/64 dev left nodad"));
  REQUIRE(far_node()->run_inside("ip address add fd09::2/64 dev right nodad"));
  {
    Scene scene(chosen(true, true, "[fd09::2]"));
    CHECK(scene.two.client.info().path.path == Path::kTcp);
    CHECK(scene.says("not l2: the peer listens for no frames there"));
    scene.two.exchange_messages(300'000);
    scene.two.say_goodbye();
  }
  CHECK(run("ip address del fd09::1/64 dev left"));
  CHECK(far_node()->run_inside("ip address del fd09::2/64 dev right"));
}

TEST_CASE(
    "with a secret that the listener lacks sluice:// connects by no path, unless the caller takes "
    "one that is not sealed",
    "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Addresses addresses;
  char file[] = "/tmp/sluice-secret-XXXXXX";
  int fd = ::mkstemp(file);
  REQUIRE(::write(fd, "sixteen bytes or more", 21) == 21);
  ::close(fd);
  Scene scene(chosen(true, true));
  // By now the listener has opened its port, without a secret.
  Setting secret("SLUICE_L2_SECRET_FILE", file);
  auto refused = scene.two.near->connect(scene.two.address, {.timeout = std::chrono::seconds(30)});
  INFO(refused.status().to_string());
  CHECK(refused.code() == Code::kUnsupported);
  CHECK(refused.status().detail().find("not l2: kAccessDenied: the peer has no secret") !=
        std::string::npos);
  CHECK(refused.status().detail().find("not tcp: tcp is not sealed") != std::string::npos);
  auto taken = scene.two.near->connect(
      scene.two.address, {.timeout = std::chrono::seconds(30), .allow_unsealed = true});
  ::unlink(file);
  INFO(taken.status().to_string());
  REQUIRE(taken.ok());
  CHECK(taken->info().path.path == Path::kTcp);
  CHECK(taken->info().reason.find("not l2: kAccessDenied: the peer has no secret") !=
        std::string::npos);
  Endpoint accepted;
  REQUIRE(scene.two.until([&] {
    auto next = scene.two.listener.try_accept();
    if (next.ok()) accepted = std::move(*next);
    return static_cast<bool>(accepted);
  }));
  CHECK(taken->close(soon()).ok());
  scene.two.say_goodbye();
}

TEST_CASE("a listener that is closed keeps no port on Ethernet", "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Addresses addresses;
  Scene scene(chosen(true, true));
  scene.two.listener = Listener();
  scene.two.exchange_messages(64, Path::kPacket);
  CHECK(scene.two.near->connect(scene.two.address, {.timeout = std::chrono::seconds(2)}).code() ==
        Code::kUnreachable);
  scene.two.say_goodbye();
}

TEST_CASE("sluice:// listens anew on an interface that was made anew, and is found there", "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Addresses addresses;
  Scene scene(chosen(true, true));
  REQUIRE(scene.two.client.info().path.path == Path::kPacket);
  scene.two.say_goodbye();
  addresses.make_anew();
  std::tie(scene.two.client, scene.two.server) = scene.two.connect_again();
  INFO(scene.two.client.info().reason);
  CHECK(scene.two.client.info().path.path == Path::kPacket);
  scene.two.exchange_messages(300'000);
  scene.two.say_goodbye();
}

constexpr const char* kDropped = "ingress protocol 0x88b5 bpf da bytecode '1,6 0 0 2'";

TEST_CASE(
    "sluice:// waits once for frames that a network drops, then goes by TCP at once and says so",
    "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Addresses addresses;
  if (!run(std::string("tc qdisc add dev left clsact && tc filter add dev left ") + kDropped))
    return skip("tc", "no classic BPF filter by tc here");
  Scene scene(chosen(true, true));
  INFO(scene.two.client.info().reason);
  CHECK(scene.two.client.info().path.path == Path::kTcp);
  CHECK(scene.says("not l2: kTimedOut: no answer from l2://left/02:00:00:00:00:0b:"));
  CHECK(scene.grown("select.ethernet_not_asked") == 0);
  for (int again = 1; again <= 2; ++again) {
    auto [next, accepted] = scene.two.connect_again();
    std::string reason = next.info().reason;
    INFO(reason);
    CHECK(next.info().path.path == Path::kTcp);
    CHECK(reason.find("not l2: l2://left/02:00:00:00:00:0b did not answer ") != std::string::npos);
    CHECK(reason.find("it is asked again 60 s after that") != std::string::npos);
    CHECK(scene.grown("select.ethernet_not_asked") == static_cast<uint64_t>(again));
    CHECK(next.close(soon()).ok());
  }
  scene.two.say_goodbye();
  // That was said of the old interface.
  addresses.make_anew();
  auto [other, accepted] = scene.two.connect_again();
  INFO(other.info().reason);
  CHECK(other.info().path.path == Path::kPacket);
  CHECK(other.close(soon()).ok());
}

// A machine with the MAC address of the far one, which gets the frames of SLP in its place, but no
// IP; and a process there.
class Impostor {
 public:
  Impostor() {
    REQUIRE(add_cable("other", 12, "third", 11));
    REQUIRE(far_node()->take("other"));
    REQUIRE(node_.take("third"));
  }
  ~Impostor() {
    for (int fd : until_) {
      if (fd >= 0) ::close(fd);
    }
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
    (void)far_node()->run_inside("tc qdisc del dev right clsact");
    (void)far_node()->run_inside("ip link del other");
  }
  Impostor(const Impostor&) = delete;
  Impostor& operator=(const Impostor&) = delete;

  // False: this machine redirects no frames.
  bool takes_frames() {
    auto redirect = [](const std::string& from, const std::string& to) {
      return far_node()->run_inside(
          "tc qdisc add dev " + from + " clsact && tc filter add dev " + from +
          " ingress protocol 0x88b5 u32 match u32 0 0 action mirred egress redirect dev " + to);
    };
    return redirect("right", "other") && redirect("other", "right");
  }
  void listens(const std::string& port) {
    int ready[2];
    REQUIRE(::pipe(until_) == 0);
    REQUIRE(::pipe(ready) == 0);
    std::fflush(nullptr);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(until_[1]);
      node_.inside([&] { serve("l2://third:" + port, ready[1]); });
      ::_exit(0);
    }
    ::close(ready[1]);
    char word = 0;
    bool listening = ::read(ready[0], &word, 1) == 1;
    ::close(ready[0]);
    REQUIRE(listening);
  }

 private:
  void serve(const std::string& address, int ready) const {
    auto context = open_context({.arena = {}, .arena_options = {}, .waiting = Waiting::kSpin});
    auto listener = context.ok() ? (*context)->listen(address) : Result<Listener>(context.status());
    if (!listener.ok() || ::write(ready, "r", 1) != 1) ::_exit(1);
    pollfd over{until_[0], POLLIN, 0};
    while (::poll(&over, 1, 0) == 0) (*context)->progress();
    ::_exit(0);  // what else this process has is its parent's
  }

  OtherNode node_;
  int until_[2] = {-1, -1};
  pid_t pid_ = -1;
};

TEST_CASE(
    "sluice:// does not take another process that answers where frames go for the one that TCP "
    "reaches, and says so",
    "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Addresses addresses;
  Impostor impostor;
  Scene scene(chosen(true, true));
  std::string peer = scene.two.client.info().peer;
  INFO(peer);
  REQUIRE(scene.two.client.info().path.path == Path::kPacket);
  scene.two.say_goodbye();
  if (!impostor.takes_frames()) return skip("tc", "no redirection by tc here");
  impostor.listens(peer.substr(peer.rfind(':') + 1));
  auto connected =
      scene.two.near->connect(scene.two.address, {.timeout = std::chrono::seconds(30)});
  INFO(connected.status().to_string());
  REQUIRE(connected.ok());
  scene.two.client = std::move(*connected);
  INFO(scene.two.client.info().reason);
  CHECK(scene.two.client.info().path.path == Path::kTcp);
  CHECK(scene.says(
      ("not l2: another process answers at " + peer + " than the one that TCP reaches").c_str()));
  REQUIRE(scene.two.until(
      [&] {
        auto next = scene.two.listener.try_accept();
        if (next.ok()) scene.two.server = std::move(*next);
        return next.ok();
      },
      in(std::chrono::seconds(10))));
  scene.two.exchange_messages(300'000, Path::kTcp);
  scene.two.say_goodbye();
}

}  // namespace
}  // namespace sluice::test
