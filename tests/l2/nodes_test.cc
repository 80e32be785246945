// Two nodes, each a network namespace: eight processes on each, everybody with everybody; and a
// cable that bulk TCP is on as well, whose frames our sockets never see.
#include <arpa/inet.h>
#include <net/if.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <cstdio>
#include <cstring>
#include <deque>

#include <sluice/select/open.h>

#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

constexpr int kPerNode = 8;
constexpr uint16_t kFirstPort = 7000;
constexpr size_t kBytes = 200'000;
constexpr int kMessages = 3;  // each way on each connection
constexpr Duration kPatience = std::chrono::seconds(100);
// Exit codes.
enum { kFine = 0, kNoContext = 10, kNoPeer, kNoPost, kNotWhole, kLate };

// What a process did not expect ends it with that code.
void need(bool fine, int code) {
  if (!fine) ::_exit(code);
}

uint64_t mix(uint64_t x) {
  x = (x ^ x >> 31) * 0x9E3779B97F4A7C15u;
  return x ^ x >> 29;
}
// The last eight bytes are the hash of the rest, whose first eight are random enough.
uint64_t hash_of(std::span<const std::byte> bytes) {
  uint64_t hash = bytes.size();
  for (size_t i = 0; i + 16 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = mix(hash + word);
  }
  return hash;
}
void fill_hashed(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i + 16 <= bytes.size(); i += 8) {
    uint64_t word = mix(seed + i);
    std::memcpy(bytes.data() + i, &word, 8);
  }
  uint64_t hash = hash_of(bytes);
  std::memcpy(bytes.data() + bytes.size() - 8, &hash, 8);
}
bool hash_fits(std::span<const std::byte> bytes) {
  uint64_t hash = 0;
  std::memcpy(&hash, bytes.data() + bytes.size() - 8, 8);
  return hash == hash_of(bytes);
}

struct Sink final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override {
    all.push_back(std::move(completion));
  }
  std::deque<Completion> all;
};

// One of the eight: connects to all of the other node, or accepts all, and exchanges.
[[noreturn]] void worker(int number, bool connects, const std::string& at) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Instant limit = after(now(), kPatience);
  ArenaOptions arena{.limit_bytes = size_t{64} << 20, .first_extent_bytes = size_t{16} << 20};
  auto opened = open_context({.arena = {}, .arena_options = arena, .waiting = Waiting::kSleep});
  need(opened.ok(), kNoContext);
  Context& context = **opened;
  std::vector<Endpoint> peers;
  Listener listener;
  if (!connects) {
    auto listening = context.listen("l2://" + at + ":" + std::to_string(kFirstPort + number));
    need(listening.ok(), kNoContext);
    listener = std::move(*listening);
  }
  while (peers.size() < kPerNode) {
    need(now() < limit, kNoPeer);
    auto port = std::to_string(kFirstPort + (number + peers.size()) % kPerNode);
    auto peer = connects ? context.connect("l2://" + at + "/" + mac_of_number(11) + ":" + port)
                         : listener.accept(limit);
    if (peer.ok()) peers.push_back(std::move(*peer));  // else it does not listen yet
  }
  Sink sent, received;
  for (size_t p = 0; p < peers.size(); ++p) {
    for (int m = 0; m < kMessages; ++m) {
      auto buffer = context.allocate({kBytes}, uint8), room = context.allocate({kBytes}, uint8);
      need(buffer.ok() && room.ok(), kNoPost);
      fill_hashed(buffer->bytes(),
                  static_cast<uint64_t>(number) << 40 | p << 32 | static_cast<uint64_t>(m) << 28);
      need(peers[p]
               .receive({.tag = 1}, std::move(*room), {.sink = &received, .deadline = limit})
               .ok(),
           kNoPost);
      need(peers[p]
               .send(1, std::move(*buffer).freeze(),
                     {.sink = &sent, .deadline = limit, .level = Level::kPlaced})
               .ok(),
           kNoPost);
    }
  }
  size_t expected = peers.size() * kMessages;
  need(
      context
          .wait_until(
              [&] { return sent.all.size() == expected && received.all.size() == expected; }, limit)
          .ok(),
      kLate);
  for (const Completion& done : sent.all) need(done.status.ok(), kNoPost);
  for (const Completion& done : received.all)
    need(done.status.ok() && hash_fits(done.buffers[0].bytes()), kNotWhole);
  sent.all.clear();
  received.all.clear();
  for (Endpoint& peer : peers) (void)peer.close(limit);
  peers.clear();
  listener = Listener();
  opened->reset();
  ::_exit(kFine);
}

pid_t start(const std::function<void()>& what) {
  std::fflush(nullptr);
  pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    what();
    ::_exit(kFine);
  }
  return pid;
}

int exit_code(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

struct TwoNodes {
  explicit TwoNodes(int mtu) {
    REQUIRE(add_cable("left", 10, "right", 11, mtu));
    REQUIRE(node.take("right"));
    REQUIRE(set_up("left", true));
  }
  ~TwoNodes() { remove_cable("left"); }
  OtherNode node;
};

TEST_CASE("eight processes of one node exchange with eight of another, each with each", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  // Of jumbo frames, of a cloud's network, and the least that IPv6 allows.
  int mtu = GENERATE(9000, 1400, 1280);
  INFO("MTU " << mtu);
  NothingLeftBehind audit;
  TwoNodes nodes(mtu);
  std::vector<pid_t> all;
  for (int i = 0; i < kPerNode; ++i) {
    all.push_back(start([&] { nodes.node.inside([&] { worker(i, false, "right"); }); }));
    all.push_back(start([&] { worker(i, true, "left"); }));
  }
  for (pid_t pid : all) CHECK(exit_code(pid) == kFine);
}

// ---- TCP beside it

sockaddr_in address_of(const char* text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(5001);
  ::inet_pton(AF_INET, text, &address.sin_addr);
  return address;
}

// Takes bytes of a counting pattern until their end.
void tcp_sink(int ready) {
  int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in own = address_of("10.99.0.2");
  need(::bind(listener, reinterpret_cast<sockaddr*>(&own), sizeof(own)) == 0 &&
           ::listen(listener, 1) == 0,
       kNoContext);
  need(::write(ready, "r", 1) == 1, kNoContext);
  int fd = ::accept(listener, nullptr, nullptr);
  need(fd >= 0, kNoPeer);
  std::vector<uint8_t> bytes(1 << 18);
  uint64_t total = 0;
  for (ssize_t got; (got = ::recv(fd, bytes.data(), bytes.size(), 0)) > 0;) {
    for (ssize_t i = 0; i < got; i += 997)
      need(bytes[static_cast<size_t>(i)] ==
               static_cast<uint8_t>((total + static_cast<uint64_t>(i)) / 256),
           kNotWhole);
    total += static_cast<uint64_t>(got);
  }
  need(total > 1 << 20, kLate);
}

// Sends until the pipe is closed.
void tcp_source(int until) {
  int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in peer = address_of("10.99.0.2");
  need(::connect(fd, reinterpret_cast<sockaddr*>(&peer), sizeof(peer)) == 0, kNoPeer);
  std::vector<uint8_t> bytes(1 << 16);  // 256 runs of 256: the pattern repeats
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i / 256);
  pollfd over{until, POLLIN, 0};
  while (::poll(&over, 1, 0) == 0) {
    for (size_t done = 0; done < bytes.size();) {
      ssize_t n = ::send(fd, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      need(n > 0, kNoPeer);
      done += static_cast<size_t>(n);
    }
  }
}

// Frames that have passed the filters of this process's packet sockets, but for `but`.
uint64_t frames_seen(int but) {
  uint64_t seen = 0;
  for (int fd = 0; fd < 256; ++fd) {
    int domain = 0;
    socklen_t length = sizeof(domain);
    if (fd == but || ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 ||
        domain != AF_PACKET)
      continue;
    tpacket_stats statistics{};
    length = sizeof(statistics);
    if (::getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &statistics, &length) == 0)
      seen += statistics.tp_packets;
  }
  return seen;
}

// Whether the kernel counts them there, and a socket that sees everything.
int unfiltered(const std::string& interface) {
  int fd = ::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0), least = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &least, sizeof(least));
  sockaddr_ll own{};
  own.sll_family = AF_PACKET;
  own.sll_protocol = htons(3);  // ETH_P_ALL
  own.sll_ifindex = static_cast<int>(::if_nametoindex(interface.c_str()));
  REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof(own)) == 0);
  return fd;
}

TEST_CASE(
    "beside bulk TCP on the same cable everything arrives, and our sockets see our frames only",
    "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  TwoNodes nodes(1500);
  REQUIRE(run("ip address add 10.99.0.1/24 dev left"));
  bool configured = false;
  nodes.node.inside([&] { configured = run("ip address add 10.99.0.2/24 dev right"); });
  REQUIRE(configured);
  int ready[2], over[2];
  REQUIRE(::pipe(ready) == 0);
  REQUIRE(::pipe(over) == 0);
  pid_t sink = start([&] {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(over[1]);
    nodes.node.inside([&] { tcp_sink(ready[1]); });
  });
  char byte;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  pid_t source = start([&] {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(over[1]);
    tcp_source(over[0]);
  });
  {
    Grown grown;
    ::setenv("SLUICE_L2_BULK", "frames", 1);  // what goes in UDP passes no filter of ours
    Two two({.node = &nodes.node});
    ::unsetenv("SLUICE_L2_BULK");
    int everything = unfiltered("left");
    // As long as TCP takes to have sent something at all.
    tpacket_stats contrast{};
    socklen_t length = sizeof(contrast);
    for (int i = 0; i < 10 || contrast.tp_packets < 1000; ++i) {
      two.exchange_messages(300'000);
      two.exchange_tensors(300'000);
      tpacket_stats more{};
      REQUIRE(::getsockopt(everything, SOL_PACKET, PACKET_STATISTICS, &more, &length) == 0);
      contrast.tp_packets += more.tp_packets;
    }
    two.pass(std::chrono::milliseconds(20));  // what is on its way
    uint64_t seen = frames_seen(everything), ours = grown("l2.frames_received");
    INFO(grown.story("l2."));
    std::fprintf(stderr,
                 "frames passed by our filters %llu, taken by us %llu; an unfiltered socket on one "
                 "end got %u\n",
                 static_cast<unsigned long long>(seen), static_cast<unsigned long long>(ours),
                 contrast.tp_packets);
    CHECK(seen == ours);
    CHECK(grown("l2.frames_of_nobody") == 0);
    ::close(everything);
  }
  ::close(over[1]);
  CHECK(exit_code(source) == kFine);
  CHECK(exit_code(sink) == kFine);
  for (int fd : {ready[0], ready[1], over[0]}) ::close(fd);
}

}  // namespace
}  // namespace sluice::test
