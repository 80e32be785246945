// SLP in UDP between two network namespaces: IPv4 and IPv6, cut and joined, with datagrams
// lost, with a path MTU that falls, from and to many addresses, and without privileges.
#include <catch2/catch.hpp>

#include <arpa/inet.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/base/counters.h>
#include <sluice/select/open.h>

#include "kernel_compat/slp/slp_wire.h"
#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/in_child.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

// Whether there is a cable whose ends have addresses of both kinds.
bool has_wire() {
  static const bool there =
      far_node() != nullptr &&
      run("ip address add 10.9.0.1/24 dev left && ip address add fd09::1/64 dev left nodad") &&
      far_node()->run_inside(
          "ip address add 10.9.0.2/24 dev right && ip address add 10.9.0.3/24 dev right && "
          "ip address add fd09::2/64 dev right nodad && ip address add fd09::3/64 dev right nodad");
  return there;
}

#define NEEDS_WIRE() \
  if (!has_wire()) return skip("netns", kNoNetwork)

bool set_both(int mtu) {
  return set_mtu("left", mtu) &&
         far_node()->run_inside("ip link set right mtu " + std::to_string(mtu));
}

// Fragments made in this namespace, of either IP.
uint64_t fragments_made() {
  uint64_t sum = 0;
  std::ifstream v6("/proc/net/snmp6");
  for (std::string name, value; v6 >> name >> value;) {
    if (name == "Ip6FragCreates") sum += std::stoull(value);
  }
  std::ifstream v4("/proc/net/snmp");
  std::string names, values;
  std::getline(v4, names);
  std::getline(v4, values);
  std::istringstream name_of(names), value_of(values);
  for (std::string name, value; name_of >> name && value_of >> value;) {
    if (name == "FragCreates") sum += std::stoull(value);
  }
  return sum;
}

// Over the cable: the far one listens at an address, and is called at `host`, or at the same.
TwoOptions over_cable(const std::string& listen_at = "l2://udp/10.9.0.2:0",
                      const std::string& host = "") {
  return {.node = far_node(),
          .far_runs_there = true,
          .listen_at = listen_at,
          .way = [host](Context&, const std::string& listening) {
            size_t port = listening.rfind(':');
            return (host.empty() ? listening.substr(0, port) : host) + listening.substr(port);
          }};
}

// Within this namespace.
TwoOptions at_home() {
  return {.listen_at = "l2://udp/127.0.0.1:0",
          .way = [](Context&, const std::string& listening) { return listening; }};
}

TEST_CASE("over UDP, messages and one-sided access cross at MTU 1280 to 65000, by IPv4 and IPv6",
          "[l2][udp]") {
  NEEDS_WIRE();
  for (int mtu : {1280, 1400, 1500, 9000, 65000}) {
    for (const char* address : {"l2://udp/10.9.0.2:0", "l2://udp/[fd09::2]:0"}) {
      NothingLeftBehind audit;
      INFO("MTU " << mtu << ", " << address);
      REQUIRE(set_both(mtu));
      uint64_t fragments = fragments_made(), joined = read_counter("l2.udp_datagrams_joined");
      uint64_t too_large =
          read_counter("l2.frames_not_taken") + read_counter("l2.udp_segments_refused");
      Two two(over_cable(address));
      two.exchange_everything(Path::kUdp);
      // At 65,000 one frame fills a call.
      if (mtu != 65000) CHECK(read_counter("l2.udp_datagrams_joined") > joined);
      CHECK(fragments_made() == fragments);
      CHECK(read_counter("l2.frames_not_taken") + read_counter("l2.udp_segments_refused") ==
            too_large);
      two.say_goodbye();
    }
  }
  REQUIRE(set_both(1500));
}

TEST_CASE(
    "over UDP, nearly all of a large message is received where it belongs, and the receipt says so",
    "[l2][udp]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  for (int mtu : {1500, 9000}) {
    INFO("MTU " << mtu);
    REQUIRE(set_both(mtu));
    constexpr size_t kSize = 8 << 20;
    Grown grown;
    Two two(over_cable());
    Box box;
    REQUIRE(two.server
                .receive({.tag = 5}, two.far->allocate({kSize}, uint8).value(),
                         {.sink = &box, .deadline = soon()})
                .ok());
    Buffer buffer = filled(*two.near, kSize, 3);
    std::vector<std::byte> sent(buffer.bytes().begin(), buffer.bytes().end());
    REQUIRE(two.client.send_and_wait(5, std::move(buffer).freeze(), soon()).ok());
    REQUIRE(two.until([&] { return !box.all.empty(); }));
    CHECK(std::equal(sent.begin(), sent.end(), box.all[0].buffers[0].bytes().begin()));
    INFO(grown.story("l2."));
    CHECK(grown("l2.frames_received_in_place") * 1344 * 2 > kSize / (mtu == 1500 ? 1 : 6));
    CHECK(box.all[0].receipt.copied_bytes < kSize / 2);
    CHECK(two.server.counters().copied_bytes < kSize / 2);
    // What is over is not expected to go on in the next.
    uint64_t astray = grown("l2.receives_astray");
    for (int i = 0; i < 50; ++i) two.exchange_messages(64 << 10);
    INFO(grown.story("l2."));
    CHECK(grown("l2.receives_astray") - astray < 20);
  }
  REQUIRE(set_both(1500));
}

TEST_CASE("over UDP, what the network drops is sent again, and everything arrives once",
          "[l2][udp]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  // One packet in twenty, each way: BPF's random number against a share of 2^32. What is
  // joined goes as a whole: devices without offloads see datagrams one by one.
  const std::string drop =
      "ingress bpf da bytecode '4,32 0 0 4294963256,53 1 0 214748365,6 0 0 2,6 0 0 0'";
  bool dropping =
      run("tc qdisc add dev left clsact && tc filter add dev left " + drop) &&
      far_node()->run_inside("tc qdisc add dev right clsact && tc filter add dev right " + drop);
  if (!dropping) return skip("tc", "no classic BPF filter by tc here");
  for (const char* address : {"l2://udp/10.9.0.2:0", "l2://udp/[fd09::2]:0"}) {
    Grown grown;
    Two two(over_cable(address));
    two.exchange_everything(Path::kUdp);
    two.exchange_messages(4 << 20, Path::kUdp);
    INFO(grown.story("l2.re"));
    CHECK(grown("l2.frames_received_in_place") > 0);
    CHECK(grown("l2.receives_astray") > 0);  // what was dropped was expected
  }
  CHECK(run("tc qdisc del dev left clsact"));
  CHECK(far_node()->run_inside("tc qdisc del dev right clsact"));
}

TEST_CASE("a listener at every address answers from the one that was spoken to", "[l2][udp]") {
  NEEDS_WIRE();
  for (const char* peer :
       {"l2://udp/10.9.0.2", "l2://udp/10.9.0.3", "l2://udp/[fd09::2]", "l2://udp/[fd09::3]"}) {
    NothingLeftBehind audit;
    INFO(peer);
    Two two(over_cable("l2://udp:0", peer));
    two.exchange_messages(300'000, Path::kUdp);
    two.say_goodbye();
  }
  Two two(over_cable("l2://udp/0.0.0.0:0", "l2://udp/10.9.0.3"));
  two.exchange_messages(300'000, Path::kUdp);
}

TEST_CASE(
    "over UDP, a path MTU that falls under a connection costs smaller frames, not the connection",
    "[l2][udp]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  REQUIRE(set_both(9000));
  uint64_t fragments = fragments_made();
  Two two(over_cable());
  two.exchange_messages(1 << 20, Path::kUdp);
  REQUIRE(set_both(1500));
  uint64_t refused = read_counter("l2.frames_not_taken");
  two.exchange_messages(1 << 20, Path::kUdp);
  CHECK(read_counter("l2.frames_not_taken") > refused);
  CHECK(fragments_made() == fragments);
}

TEST_CASE("over UDP, a way that is narrower than IPv6 allows is refused with its size",
          "[l2][udp]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  // The interface keeps its MTU: with less than 1280 it would lose its IPv6 addresses.
  REQUIRE(run("ip route add 10.9.0.2/32 dev left mtu 1200"));
  auto context = std::move(open_context({})).value();
  auto connected = context->connect("l2://udp/10.9.0.2:7000");
  CHECK(connected.code() == Code::kUnsupported);
  CHECK(connected.status().detail().find("1172") != std::string_view::npos);
  CHECK(connected.status().detail().find("use tcp://") != std::string_view::npos);
  REQUIRE(run("ip route del 10.9.0.2/32 dev left"));
}

TEST_CASE("over UDP, a pulled cable ends the connection in its time", "[l2][udp]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Two two(over_cable());
  Box box;
  REQUIRE(far_node()->run_inside("ip link set right down"));
  Tensor tensor = filled(*two.near, 1 << 20, 3).freeze();
  REQUIRE(two.client
              .send(5, tensor,
                    {.sink = &box,
                     .deadline = after(now(), std::chrono::seconds(60)),
                     .level = Level::kPlaced})
              .ok());
  REQUIRE(two.until([&] {
    return two.client.state() == EndpointState::kClosed &&
           two.server.state() == EndpointState::kClosed;
  }));
  REQUIRE(box.all.size() == 1);
  CHECK(box.all[0].status == Code::kOutcomeUnknown);
  CHECK(box.all[0].status.detail().find("not been heard") != std::string_view::npos);
  REQUIRE(
      far_node()->run_inside("ip link set right up && ip address add fd09::2/64 dev right nodad; "
                             "ip address add fd09::3/64 dev right nodad; true"));
}

TEST_CASE("over UDP, what cannot be is refused with the reason", "[l2][udp]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  auto context = std::move(open_context({})).value();
  auto detail = [](const auto& result) { return result.status().detail(); };
  auto closed = context->connect("l2://udp/10.9.0.1:9");
  CHECK(closed.code() == Code::kUnreachable);
  CHECK(detail(closed).find("port is closed") != std::string_view::npos);
  auto far_closed = context->connect("l2://udp/[fd09::2]:9");
  CHECK(far_closed.code() == Code::kUnreachable);
  CHECK(detail(far_closed).find("port is closed") != std::string_view::npos);
  CHECK(context->connect("l2://udp/192.0.2.1:9").code() == Code::kUnreachable);  // no route
  CHECK(context->connect("l2://udp/no-such-host.invalid:9").code() == Code::kUnreachable);
  auto nobody = context->connect("l2://udp:9");
  CHECK(nobody.code() == Code::kInvalidArgument);
  CHECK(detail(nobody).find("l2://udp/10.0.0.1:7000") != std::string_view::npos);
  auto elsewhere = context->listen("l2://udp/10.9.0.2:0");
  CHECK(elsewhere.code() == Code::kInvalidArgument);
  CHECK(detail(elsewhere).find("no such address") != std::string_view::npos);
  auto first = context->listen("l2://udp/10.9.0.1:7000");
  REQUIRE(first.ok());
  CHECK(first->address() == "l2://udp/10.9.0.1:7000");
  auto second = context->listen("l2://udp/10.9.0.1:7000");
  CHECK(second.code() == Code::kInvalidArgument);
  CHECK(detail(second).find("taken") != std::string_view::npos);
}

// What any program that reaches the port may send.
class Stranger {
 public:
  explicit Stranger(const std::string& address)
      : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in there{};
    there.sin_family = AF_INET;
    there.sin_port =
        htons(port_ = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    ::inet_pton(AF_INET, "10.9.0.2", &there.sin_addr);
    REQUIRE(::connect(fd_, reinterpret_cast<sockaddr*>(&there), sizeof(there)) == 0);
  }
  ~Stranger() { ::close(fd_); }
  // A frame of this type with so many bytes behind it that are not its own.
  void send(uint8_t type, uint32_t connection, size_t behind) const {
    uint8_t frame[SLP_MAX_HEADER + 64] = {};
    slp_base base{};
    base.type = type;
    base.source_port = 40'000;
    base.destination_port = port_;
    base.connection = connection;
    slp_hello hello{};
    hello.nonce = 7;
    hello.connection = 7;
    hello.min_version = hello.max_version = SLP_VERSION;
    hello.mtu = 1452;
    if (type == SLP_HELLO) slp_encode_hello(frame + SLP_BASE_BYTES, &hello);
    slp_encode_base(frame, &base);
    size_t bytes = SLP_BASE_BYTES + slp_extension_bytes(type) + behind;
    REQUIRE(::send(fd_, frame, bytes, 0) == static_cast<ssize_t>(bytes));
  }
  void send_junk(size_t bytes) const {
    std::string junk(bytes, 'x');
    REQUIRE(::send(fd_, junk.data(), bytes, 0) == static_cast<ssize_t>(bytes));
  }
  bool answered() const {
    char some[200];
    return ::recv(fd_, some, sizeof(some), MSG_DONTWAIT) > 0;
  }

 private:
  int fd_;
  uint16_t port_ = 0;
};

TEST_CASE("over UDP, strangers' datagrams are dropped and counted, and disturb nobody",
          "[l2][udp]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Two two(over_cable());
  Stranger stranger(two.listener.address());
  auto counted = [&](const char* counter, const std::function<void()>& send) {
    INFO(counter);
    uint64_t before = read_counter(counter);
    send();
    CHECK(two.until([&] { return read_counter(counter) > before; }));
    two.exchange_messages(10'000, Path::kUdp);
  };
  counted("l2.frames_dropped", [&] { stranger.send_junk(1); });
  counted("l2.frames_dropped", [&] { stranger.send_junk(1000); });
  counted("l2.frames_truncated", [&] { stranger.send_junk(0); });
  // What Ethernet would pad is cut to its size here.
  counted("l2.frames_dropped", [&] { stranger.send(SLP_HELLO, 0, 7); });
  CHECK_FALSE(stranger.answered());
  counted("l2.hellos_unproven", [&] { stranger.send(SLP_HELLO, 0, 0); });
  CHECK(stranger.answered());
  // The connection of somebody else, whose number is easy to guess.
  counted("l2.frames_of_nobody", [&] { stranger.send(SLP_PING, 1 << 16, 0); });
  counted("l2.frames_of_nobody", [&] { stranger.send(SLP_BYE, 1 << 16, 0); });
  two.say_goodbye();
}

// Stands between a client and a listener, and sees all that the client sends.
class Middle final : public ProgressHook {
 public:
  explicit Middle(uint16_t listener_port) {
    for (int* fd : {&client_side_, &listener_side_}) {
      *fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      sockaddr_in any{};
      any.sin_family = AF_INET;
      any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      REQUIRE(::bind(*fd, reinterpret_cast<sockaddr*>(&any), sizeof(any)) == 0);
    }
    listener_.sin_family = AF_INET;
    listener_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener_.sin_port = htons(listener_port);
    socklen_t length = sizeof(own_);
    REQUIRE(::getsockname(client_side_, reinterpret_cast<sockaddr*>(&own_), &length) == 0);
  }
  ~Middle() {
    ::close(client_side_);
    ::close(listener_side_);
  }
  std::string address() const {
    return "l2://udp/127.0.0.1:" + std::to_string(ntohs(own_.sin_port));
  }
  Instant next_timeout() override { return kNever; }
  size_t progress(Instant) override {
    char data[65536];
    size_t moved = 0;
    socklen_t length = sizeof(client_);
    for (ssize_t got; (got = ::recvfrom(client_side_, data, sizeof(data), 0,
                                        reinterpret_cast<sockaddr*>(&client_), &length)) > 0;
         ++moved) {
      rewrite_ports(data, false);
      last.assign(data, data + got);
      if (!hold) forward();
    }
    for (ssize_t got; (got = ::recv(listener_side_, data, sizeof(data), 0)) > 0; ++moved) {
      rewrite_ports(data, true);
      (void)::sendto(client_side_, data, static_cast<size_t>(got), 0,
                     reinterpret_cast<sockaddr*>(&client_), sizeof(client_));
    }
    return moved;
  }
  void forward() const { send_from(listener_side_); }
  void send_from(int fd) const {
    REQUIRE(::sendto(fd, last.data(), last.size(), 0, reinterpret_cast<const sockaddr*>(&listener_),
                     sizeof(listener_)) > 0);
  }

  std::vector<char> last;  // what the client sent last
  bool hold = false;

 private:
  // The base's port of the listener is the relay's to the client.
  void rewrite_ports(char* data, bool to_client) {
    auto* frame = reinterpret_cast<uint8_t*>(data);
    uint8_t* port = frame + (to_client ? 2 : 4);
    slp_store16(port, ntohs(to_client ? own_.sin_port : listener_.sin_port));
    uint32_t header = SLP_BASE_BYTES + slp_extension_bytes(frame[0] & 31);
    uint8_t flags = frame[1];
    frame[1] = static_cast<uint8_t>(flags & ~SLP_FLAG_CE);
    slp_store32(frame + 28, 0);
    slp_store32(frame + 28, slp_crc32c(0, frame, header));
    frame[1] = flags;
  }
  int client_side_ = -1, listener_side_ = -1;
  sockaddr_in listener_{}, client_{}, own_{};
};

TEST_CASE(
    "over UDP, a true frame that comes from elsewhere is nobody's, and is still good from its own "
    "place",
    "[l2][udp]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  std::optional<Middle> middle;
  TwoOptions options = at_home();
  options.way = [&](Context& near, const std::string& listening) {
    middle.emplace(static_cast<uint16_t>(std::stoi(listening.substr(listening.rfind(':') + 1))));
    near.add_hook(&*middle);
    return middle->address();
  };
  Two two(options);
  two.exchange_messages(64, Path::kUdp);
  middle->hold = true;
  middle->last.clear();
  Box in, out;
  REQUIRE(two.server
              .receive({.tag = 9}, std::move(two.far->allocate({64}, uint8)).value(),
                       {.sink = &in, .deadline = soon()})
              .ok());
  REQUIRE(two.client.send(9, filled(*two.near, 64, 1).freeze(), {.sink = &out, .deadline = soon()})
              .ok());
  REQUIRE(two.until([&] { return !middle->last.empty() && (middle->last[0] & 31) == SLP_EAGER; }));
  int elsewhere = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  uint64_t before = read_counter("l2.frames_of_nobody");
  middle->send_from(elsewhere);
  CHECK(two.until([&] { return read_counter("l2.frames_of_nobody") > before || !in.all.empty(); }));
  CHECK(in.all.empty());
  ::close(elsewhere);
  middle->hold = false;
  middle->forward();
  REQUIRE(two.until([&] { return in.all.size() == 1 && out.all.size() == 1; }));
  CHECK(in.all[0].status.ok());
  two.near->remove_hook(&*middle);
}

// What a child without any capability finds: 0 as it should be.
int without_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  if (::syscall(SYS_capset, &header, none) != 0) return 2;
  auto near = open_context({}), far = open_context({});
  if (!near.ok() || !far.ok()) return 3;
  if ((*far)->listen("l2://lo:0").code() != Code::kAccessDenied) return 4;
  Two two(at_home());
  two.exchange_messages(4 << 20, Path::kUdp);
  bool told = false;
  for (const PathReport& report : explain_paths()) {
    if (report.path == Path::kUdp)
      told = report.usable && report.why.find("KiB to receive") != std::string::npos;
  }
  return told ? 0 : 5;
}

TEST_CASE("over UDP, a program without any capability is served, and told its buffers",
          "[l2][udp]") {
  NEEDS_WIRE();
  CHECK(in_child(without_capabilities) == 0);
}

}  // namespace
}  // namespace sluice::test
