// Frames that no honest peer sends, put on the wire beside a live connection: each is dropped
// or refused and counted by its cause, and the connection goes on as if nothing had been.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>

#include <sluice/select/open.h>
#include <sluice/wire/messages.h>

#include "kernel_compat/slp/slp.h"
#include "tests/l2/raw_peer.h"
#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

using Bytes = std::vector<uint8_t>;
const Mac kLeft = mac_number(10), kRight = mac_number(11);

struct Cable {
  Cable() { REQUIRE(add_cable("left", 10, "right", 11)); }
  ~Cable() { remove_cable("left"); }
};

// A live connection, somebody who sees what crosses, and somebody who sends from its side.
class Live {
 public:
  Live() : seen_("right"), wire("left") {
    REQUIRE(seen_.open());
    REQUIRE(wire.open());
    two.exchange_messages(100);
    two.exchange_messages(100'000);
  }
  // The latest frame of that type from the near end to the far one, without its Ethernet header.
  Bytes latest(uint8_t type) {
    Bytes found;
    two.exchange_messages(100);
    for (auto frame = seen_.receive(); !frame.empty(); frame = seen_.receive()) {
      if (std::equal(kRight.begin(), kRight.end(), frame.begin()) &&
          (frame[kEthernetBytes] & 31) == type)
        found.assign(frame.begin() + kEthernetBytes, frame.end());
    }
    REQUIRE_FALSE(found.empty());
    return found;
  }
  void inject(const Bytes& frame) { REQUIRE(wire.send(ethernet(kRight, kLeft, frame))); }
  // The connection is as good as before.
  void check_alive() {
    two.exchange_messages(5000);
    CHECK(two.client.state() == EndpointState::kConnected);
    CHECK(two.server.state() == EndpointState::kConnected);
  }

 private:
  Cable cable_;
  RawWire seen_;

 public:
  RawWire wire;
  Two two;
};

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

// ---- peers that are real, but not honest

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

TEST_CASE(
    "a flood of HELLOs from addresses that do not answer costs no memory, and honest peers connect",
    "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Live live;
  uint64_t sent = 0;
  Grown grown;
  auto some = [&] {
    for (int i = 0; i < 20; ++i) {
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
  };
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
