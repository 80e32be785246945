// Peers that are real, but not honest: what they try reaches nothing and nobody else, and a live
// connection beside them goes on as if nothing had been. Wrong frames: wrong_frames_test.cc.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sluice/select/open.h>
#include <sluice/wire/messages.h>

#include "kernel_compat/slp/slp.h"
#include "tests/l2/live.h"
#include "tests/l2/raw_peer.h"
#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

uint16_t port_of(const std::string& address) {
  return static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)));
}

class Crowd {
 public:
  Crowd(Live& live, const Mac& own) : live_(live), own_(own), in_("left") {}
  RawPeer& add(uint16_t port) {
    RawPeer::Place place{
        .own = own_, .peer = kRight, .port = port, .peer_port = port_of(live_.two.address)};
    return *peers_.emplace_back(
        std::make_unique<RawPeer>(place, 0x1234567 * (peers_.size() + 1) + port));
  }
  void turn() {
    Instant t = now();
    for (auto frame = in_.receive(); !frame.empty(); frame = in_.receive()) {
      for (auto& peer : peers_) peer->take(frame, t);
    }
    for (auto& peer : peers_) peer->turn(live_.wire, t);
  }
  bool until(const std::function<bool()>& done) {
    return live_.two.until(
        [&] {
          turn();
          return done();
        },
        in(std::chrono::seconds(20)));
  }
  size_t up() const {
    return static_cast<size_t>(std::count_if(
        peers_.begin(), peers_.end(), [](const auto& peer) { return peer->state() == SLP_UP; }));
  }

 private:
  Live& live_;
  Mac own_;
  RawWire in_;
  std::vector<std::unique_ptr<RawPeer>> peers_;
};

TEST_CASE("a peer with another's handle reaches nothing, and only it is told", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Live live;
  Buffer memory = filled(*live.two.far, 20'000, 5);
  auto key = live.two.server.grant(memory, {.rights = Right::kReadWrite});
  REQUIRE(key.ok());
  Crowd crowd(live, mac_number(77));
  RawPeer& thief = crowd.add(4000);
  REQUIRE(crowd.until([&] { return thief.state() == SLP_UP; }));
  auto handle = static_cast<uint32_t>(key->device_key);
  REQUIRE(slp_pull(thief.session(), handle, 0, 10'000, 1) == SLP_OK);
  REQUIRE(slp_push(thief.session(), handle, 0, 10'000, 2, nullptr) == SLP_OK);
  REQUIRE(crowd.until([&] { return thief.ended.size() == 2; }));
  CHECK(thief.ended == std::vector<slp_status>{SLP_BAD_HANDLE, SLP_BAD_HANDLE});
  CHECK(std::all_of(thief.memory.begin(), thief.memory.end(),
                    [](uint8_t byte) { return byte == 0; }));
  CHECK(holds(memory.bytes(), 5));
  CHECK(live.two.server.revoke(*key).ok());
  live.check_alive();
}

TEST_CASE("a peer that says something else than HELLO is sent away, and only it", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Live live;
  Crowd crowd(live, mac_number(77));
  RawPeer& fool = crowd.add(4000);
  REQUIRE(crowd.until([&] { return fool.state() == SLP_UP; }));
  REQUIRE(fool.say(Bytes(300, 0xee)));
  CHECK(crowd.until([&] { return fool.state() == SLP_DOWN; }));
  CHECK(fool.why() == SLP_CLOSED);
  live.check_alive();
}

TEST_CASE("what frames and grants carry cannot be guessed from others of them", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Live live;
  // Every bit of them is sometimes set and sometimes not: of 40 random ones one in 2^39 is not.
  constexpr int kSamples = 40;
  uint32_t set = 0, clear = 0;
  for (int i = 0; i < kSamples; ++i) {
    slp_base base;
    if (i > 0) std::tie(live.two.client, live.two.server) = live.two.connect_again();
    Bytes frame = live.latest(SLP_EAGER);
    REQUIRE(slp_decode_base(frame.data(), frame.size(), frame.size(), &base) == SLP_TAKEN);
    set |= base.connection;
    clear |= ~base.connection;
  }
  CHECK(set == UINT32_MAX);
  CHECK(clear == UINT32_MAX);
  uint64_t address_set = 0, address_clear = 0;
  Buffer memory = filled(*live.two.far, 20'000, 5);
  for (int i = 0; i < kSamples; ++i) {
    auto key = live.two.server.grant(memory, {.rights = Right::kReadWrite});
    REQUIRE(key.ok());
    uint64_t address = key->address - (uint64_t{1} << 32);
    address_set |= address;
    address_clear |= ~address;
    CHECK(live.two.server.revoke(*key).ok());
  }
  CHECK((address_set & address_clear) == (uint64_t{1} << 62) - 1);
  // A peer that knows a handle and not where its window begins.
  auto key = live.two.server.grant(memory, {.rights = Right::kReadWrite});
  REQUIRE(key.ok());
  RemoteKey guess = *key;
  for (uint64_t offset : {uint64_t{1} << 32, uint64_t{0}, key->address ^ uint64_t{1} << 61,
                          key->address + memory.bytes().size()}) {
    guess.address = offset;
    auto read = live.two.client.read_and_wait(guess, 0, filled(*live.two.near, 100, 0), soon());
    CHECK(read.status().code() == Code::kAccessDenied);
  }
  CHECK(live.two.server.revoke(*key).ok());
  live.check_alive();
}

TEST_CASE("two peers with one MAC address are two, and one that begins anew ends its own past only",
          "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Live live;
  Crowd crowd(live, kLeft);
  RawPeer& twin = crowd.add(4000);
  REQUIRE(crowd.until([&] { return twin.state() == SLP_UP; }));
  live.check_alive();
  CHECK(twin.state() == SLP_UP);
  RawPeer& again = crowd.add(4000);
  REQUIRE(crowd.until([&] { return again.state() == SLP_UP; }));
  live.check_alive();
  CHECK(again.state() == SLP_UP);
}

TEST_CASE(
    "what a peer says before anybody has accepted it is bounded, also when each message is empty",
    "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Live live;
  Crowd crowd(live, mac_number(77));
  RawPeer& talker = crowd.add(4000);
  REQUIRE(crowd.until([&] { return talker.state() == SLP_UP; }));
  std::array<std::byte, wire::kMaxHeaderBytes> hello;
  size_t bytes = wire::encode(wire::Hello{.incarnation = 7}, hello);
  REQUIRE(talker.say({reinterpret_cast<const uint8_t*>(hello.data()), bytes}));
  constexpr size_t kMany = 50'000, kTurnsInVain = 100;
  size_t said = 0;
  for (size_t in_vain = 0; said < kMany && in_vain < kTurnsInVain; ++in_vain) {
    for (; said < kMany && talker.say({}); ++said) in_vain = 0;
    crowd.turn();
    live.two.pass(std::chrono::milliseconds(1));
  }
  CHECK(said < kMany);  // there was no credit for more
  CHECK(talker.state() == SLP_UP);
  live.check_alive();
  Endpoint accepted = std::move(live.two.listener.try_accept()).value();
  CHECK(crowd.until([&] { return talker.state() == SLP_DOWN; }));
  live.check_alive();
}

// ---- one that is killed and started anew

// Takes messages at a port that is always the same, until it is killed.
pid_t start_listener(const std::string& at) {
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto context = open_context({});
    if (!context.ok()) ::_exit(1);
    auto listener = (*context)->listen(at);
    if (!listener.ok() || ::write(ready[1], "r", 1) != 1) ::_exit(2);
    std::vector<Endpoint> peers;
    Box box;
    for (;;) {
      auto next = listener->try_accept();
      if (next.ok()) {
        auto room = (*context)->allocate({5000}, uint8);
        if (!room.ok() ||
            !next->receive({.tag = 1}, std::move(*room), {.sink = &box, .deadline = kNever}).ok())
          ::_exit(3);
        peers.push_back(std::move(*next));
      }
      (void)(*context)->wait(in(std::chrono::milliseconds(10)));
    }
  }
  ::close(ready[1]);
  char byte;
  bool listens = ::read(ready[0], &byte, 1) == 1;
  ::close(ready[0]);
  REQUIRE(listens);
  return pid;
}

void end(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST_CASE("a peer that was killed and started anew is told of at once, and met anew", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Cable cable;
  pid_t first = start_listener("l2://right:7000");
  {
    auto context = std::move(open_context({})).value();
    const std::string at = "l2://left/" + mac_of_number(11) + ":7000";
    auto peer = context->connect(at);
    REQUIRE(peer.ok());
    CHECK(peer->send_and_wait(1, filled(*context, 5000, 1).freeze(), soon()).ok());
    end(first);
    pid_t second = start_listener("l2://right:7000");
    Box box;
    REQUIRE(peer->send(1, filled(*context, 5000, 2).freeze(),
                       {.sink = &box, .deadline = soon(), .level = Level::kPlaced})
                .ok());
    REQUIRE(
        context
            ->wait_until(
                [&] { return peer->state() == EndpointState::kClosed && !box.all.empty(); }, soon())
            .ok());
    INFO(box.all[0].status.to_string());
    CHECK(box.all[0].status.detail().find("was restarted") != std::string_view::npos);
    auto again = context->connect(at);
    REQUIRE(again.ok());
    CHECK(again->send_and_wait(1, filled(*context, 5000, 3).freeze(), soon()).ok());
    end(second);
  }
}

// ---- floods

// So many frames with each turn of the near context.
class Flood final : public ProgressHook {
 public:
  Flood(Two& two, std::function<void()> some) : two_(two), some_(std::move(some)) {
    two_.near->add_hook(this);
  }
  ~Flood() { two_.near->remove_hook(this); }
  size_t progress(Instant) override {
    some_();
    return 0;
  }
  Instant next_timeout() override { return kNever; }

 private:
  Two& two_;
  std::function<void()> some_;
};

// From as many machines, each with a cookie that it made up.
void send_hellos(Live& live, uint64_t& sent, int count) {
  for (int i = 0; i < count; ++i) {
    slp_hello hello{};
    hello.nonce = ++sent;
    hello.cookie = sent * 77;
    hello.connection = 0x10001;
    hello.min_version = hello.max_version = SLP_VERSION;
    hello.mtu = 1500, hello.stream_kib = 10, hello.transfers = 16, hello.handles = 64;
    slp_base base{};
    base.type = SLP_HELLO;
    base.source_port = static_cast<uint16_t>(sent);
    base.destination_port = port_of(live.two.address);
    Bytes frame(SLP_BASE_BYTES + SLP_HELLO_BYTES);
    slp_encode_hello(frame.data() + SLP_BASE_BYTES, &hello);
    slp_encode_base(frame.data(), &base);
    (void)live.wire.send(
        ethernet(kRight, mac_number(static_cast<int>(1000 + sent % 60'000)), frame));
  }
}

TEST_CASE(
    "a flood of HELLOs from addresses that do not answer costs no memory, and honest peers connect",
    "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Live live;
  uint64_t sent = 0;
  Grown grown;
  auto some = [&] { send_hellos(live, sent, 20); };
  live.two.exchange_tensors(300'000);
  live.two.exchange_anew();
  uint64_t before = rss_anon_kib();
  {
    Flood flood(live.two, some);
    REQUIRE(live.two.until([&] { return sent > 20'000; }));
    for (int i = 0; i < 5; ++i) live.two.exchange_anew();
    live.two.exchange_messages(5000);
    REQUIRE(live.two.until([&] { return sent > 50'000; }));
  }
  INFO(grown.story("l2."));
  CHECK(grown("l2.hellos_unproven") > 1000);
  CHECK(grown("l2.accepts") == 6);
  CHECK(rss_anon_kib() < before + 4096);
  live.check_alive();
}

TEST_CASE("a flood is dropped before it reaches the port, but for a part, until it is over",
          "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Live live;
  Grown grown;
  uint64_t sent = 0;
  // One burst makes it a flood, and of the next one most are dropped.
  bool dropped = false;
  for (Instant limit = soon(); !dropped && now() < limit;) {
    const bool flooded = grown("l2.floods") > 0;
    const uint64_t heard = grown("l2.hellos_unproven");
    send_hellos(live, sent, 3000);
    live.two.pass(std::chrono::milliseconds(5));
    dropped = flooded && grown("l2.hellos_unproven") - heard < 1000;
  }
  CHECK(dropped);
  // Who is connected notices nothing.
  live.two.exchange_messages(5000);
  live.two.exchange_tensors(300'000);
  // It is over: all of them.
  live.two.pass(std::chrono::milliseconds(1500));
  const uint64_t before = grown("l2.hellos_unproven");
  send_hellos(live, sent, 100);
  CHECK(live.two.until([&] { return grown("l2.hellos_unproven") - before == 100; }));
  live.two.exchange_anew();
  live.check_alive();
}

TEST_CASE("peers that say HELLO and no more fill a table of their own, and honest peers connect",
          "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Live live;
  Grown grown;
  Crowd crowd(live, mac_number(77));
  for (uint16_t port = 1; port <= 300; ++port) crowd.add(port);
  REQUIRE(crowd.until([&] { return grown("l2.half_open_dropped") > 0; }));
  {
    Flood flood(live.two, [&] { crowd.turn(); });
    live.two.exchange_anew();
  }
  INFO(grown.story("l2."));
  live.check_alive();
}

}  // namespace
}  // namespace sluice::test
