// Half a round trip of small messages between two namespaces: TCP, UDP, bare frames and SLP over
// packet sockets, SLP in the module (blocking, busy waiting). Rounds are interleaved, the first
// of each is another one every time; --flow lets a paced TCP stream share the wire. Verifies each
// message; prints no figure if one is wrong. --json: one object, with every round.
//   latency [--flow] [--bytes N] [--messages N] [--rounds N] [--json]
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/module/packet_peer.h"
#include "tests/module/wire.h"

using namespace sluice::module_test;

namespace {

struct Plan {
  size_t bytes = 64;
  int messages = 400, rounds = 7;
  bool flow = false, json = false;
};

// Says and hears one message at a time.
struct Talker {
  virtual ~Talker() = default;
  virtual void say(const std::string& text) = 0;
  virtual std::string hear(size_t bytes) = 0;
};

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "latency: %s: %s\n", what, std::strerror(errno));
  std::_Exit(1);
}

struct Plain : Talker {
  Fd fd;
  void say(const std::string& text) override {
    if (::send(fd.value(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) die("send");
  }
  std::string hear(size_t bytes) override {
    std::string text(bytes, '\0');
    for (size_t at = 0; at < bytes;) {
      ssize_t came = ::recv(fd.value(), text.data() + at, bytes - at, 0);
      if (came <= 0) die("recv");
      at += static_cast<size_t>(came);
    }
    return text;
  }
};

struct Packet : Talker {
  std::unique_ptr<PacketPeer> peer;
  void say(const std::string& text) override {
    while (!peer->send(text)) peer->turn(1);
  }
  std::string hear(size_t) override {
    while (peer->messages.empty()) peer->turn(1000);
    std::string text = peer->messages.front();
    peer->messages.pop_front();
    return text;
  }
};

sockaddr_in at(const char* ip, uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(port);
  ::inet_pton(AF_INET, ip, &out.sin_addr);
  return out;
}

enum Kind { kTcp, kUdp, kFrames, kPacket, kModule, kModuleSpin, kKinds };
constexpr const char* kNames[] = {"tcp", "udp", "frames", "packet", "module", "module_spin"};

Fd inet(const End& end, int type) {
  return end.space.run([&] { return Fd(::socket(AF_INET, type | SOCK_CLOEXEC, 0)); });
}

// Ends of one connection, made before the fork.
struct Line {
  std::unique_ptr<Talker> a, b;
};

Line make_inet(const Wire& wire, int type, uint16_t port) {
  auto a = std::make_unique<Plain>(), b = std::make_unique<Plain>();
  sockaddr_in home = at("10.9.0.1", port), away = at("10.9.0.2", port);
  int yes = 1;
  Fd listening = inet(wire.b, type);
  ::setsockopt(listening.value(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(listening.value(), reinterpret_cast<sockaddr*>(&away), sizeof(away)) != 0) die("bind");
  a->fd = inet(wire.a, type);
  if (type == SOCK_STREAM) {
    if (::listen(listening.value(), 1) != 0 || ::connect(a->fd.value(), reinterpret_cast<sockaddr*>(&away), sizeof(away)) != 0) die("connect");
    b->fd = Fd(::accept(listening.value(), nullptr, nullptr));
    for (Plain* end : {a.get(), b.get()}) ::setsockopt(end->fd.value(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  } else {
    b->fd = std::move(listening);
    if (::bind(a->fd.value(), reinterpret_cast<sockaddr*>(&home), sizeof(home)) != 0 ||
        ::connect(a->fd.value(), reinterpret_cast<sockaddr*>(&away), sizeof(away)) != 0 ||
        ::connect(b->fd.value(), reinterpret_cast<sockaddr*>(&home), sizeof(home)) != 0)
      die("connect");
  }
  return {std::move(a), std::move(b)};
}

// What a packet socket costs without a protocol: nothing is numbered, answered or sent again.
Fd frame_socket(const End& from, const End& to) {
  sockaddr_ll own{};
  own.sll_family = AF_PACKET;
  own.sll_protocol = htons(0x88b6);  // local experimental Ethertype 2
  own.sll_ifindex = static_cast<int>(from.ifindex);
  own.sll_halen = 6;
  std::memcpy(own.sll_addr, to.mac, 6);
  Fd made = from.space.run([] { return Fd(::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, 0)); });
  if (::bind(made.value(), reinterpret_cast<sockaddr*>(&own), sizeof(own)) != 0) die("bind");
  return made;
}

struct Frames : Plain {
  sockaddr_ll to{};
  void say(const std::string& text) override {
    if (::sendto(fd.value(), text.data(), text.size(), 0, reinterpret_cast<sockaddr*>(&to), sizeof(to)) < 0) die("sendto");
  }
};

Line make_frames(const Wire& wire) {
  auto a = std::make_unique<Frames>(), b = std::make_unique<Frames>();
  for (auto [end, from, other] : {std::tuple{a.get(), &wire.a, &wire.b}, std::tuple{b.get(), &wire.b, &wire.a}}) {
    end->fd = frame_socket(*from, *other);
    end->to.sll_family = AF_PACKET;
    end->to.sll_protocol = htons(0x88b6);
    end->to.sll_ifindex = static_cast<int>(from->ifindex);
    end->to.sll_halen = 6;
    std::memcpy(end->to.sll_addr, other->mac, 6);
  }
  return {std::move(a), std::move(b)};
}

Line make_packet(const Wire& wire, uint16_t port) {
  auto a = std::make_unique<Packet>(), b = std::make_unique<Packet>();
  a->peer = std::make_unique<PacketPeer>(wire.a, port);
  b->peer = std::make_unique<PacketPeer>(wire.b, port);
  b->peer->listen();
  a->peer->connect(wire.b.mac, port);
  while (!a->peer->up() || !b->peer->up()) a->peer->turn(1), b->peer->turn(1);
  return {std::move(a), std::move(b)};
}

// Sends by name: it was called.
struct Named : Plain {
  sockaddr_sluice to{};
  void say(const std::string& text) override {
    if (send_to(fd.value(), text, to) < 0) die("sendto");
  }
};

Line make_module(const Wire& wire, bool spin) {
  auto a = std::make_unique<Named>();
  auto b = std::make_unique<Plain>();
  a->fd = bound_socket(wire.a, 7001);
  a->to = seen_from(wire.a, wire.b, 7000);
  b->fd = bound_socket(wire.b, 7000);
  if (connect_to(b->fd.value(), seen_from(wire.b, wire.a, 7001)) != 0) die("connect");
  int us = spin ? 1000000 : 0;
  for (int fd : {a->fd.value(), b->fd.value()}) ::setsockopt(fd, SOL_SLUICE, SLUICE_SPIN_US, &us, sizeof(us));
  return {std::move(a), std::move(b)};
}

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  ::sched_setaffinity(0, sizeof(set), &set);
}

double now_us() {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double measure(Line line, const Plan& plan) {
  pid_t child = ::fork();
  if (child == 0) {
    pin(1);
    for (int i = 0; i < plan.messages + 20; ++i) line.b->say(line.b->hear(plan.bytes));
    // Acknowledgements that are still due.
    if (auto* packet = dynamic_cast<Packet*>(line.b.get())) packet->peer->turn(5);
    ::_exit(0);
  }
  pin(0);
  std::vector<double> samples;
  for (int i = 0; i < plan.messages + 20; ++i) {
    std::string text(plan.bytes, static_cast<char>('a' + i % 26));
    double begin = now_us();
    line.a->say(text);
    bool same = line.a->hear(plan.bytes) == text;
    if (i >= 20) samples.push_back((now_us() - begin) / 2);
    if (!same) die("a message came changed");
  }
  ::waitpid(child, nullptr, 0);
  return median(samples);
}

// A TCP stream of some 8 MB/s (what the guest's CPUs leave room for) from b to a.
pid_t start_flow(const Wire& wire) {
  pid_t child = ::fork();
  if (child != 0) return child;
  Line line = make_inet(wire, SOCK_STREAM, 5999);
  auto* from = static_cast<Plain*>(line.b.get());
  auto* to = static_cast<Plain*>(line.a.get());
  if (::fork() == 0) {
    std::string sink(65536, '\0');
    while (::recv(to->fd.value(), sink.data(), sink.size(), 0) > 0) {
    }
    ::_exit(0);
  }
  unsigned rate = 8 << 20;
  ::setsockopt(from->fd.value(), SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
  std::string bulk(65536, 'b');
  while (::send(from->fd.value(), bulk.data(), bulk.size(), 0) > 0) {
  }
  ::_exit(0);
}

Line make(Kind kind, const Wire& wire, uint16_t port) {
  switch (kind) {
    case kTcp: return make_inet(wire, SOCK_STREAM, port);
    case kUdp: return make_inet(wire, SOCK_DGRAM, port);
    case kFrames: return make_frames(wire);
    case kPacket: return make_packet(wire, port);
    default: return make_module(wire, kind == kModuleSpin);
  }
}

// [kind][beside a flow]: the median of each round.
using Rounds = std::vector<double>[kKinds][2];

void measure_round(const Wire& wire, const Plan& plan, int round, Rounds& medians) {
  for (int flow = 0; flow <= plan.flow; ++flow) {
    pid_t other = flow ? start_flow(wire) : 0;
    for (int turn = 0; turn < kKinds; ++turn) {
      int kind = (turn + round) % kKinds;
      auto port = static_cast<uint16_t>(6000 + round * 20 + flow * 10 + kind);
      medians[kind][flow].push_back(measure(make(static_cast<Kind>(kind), wire, port), plan));
    }
    if (flow) {
      ::kill(other, SIGKILL);
      ::waitpid(other, nullptr, 0);
    }
  }
}

std::vector<double> ratios(const std::vector<double>& over, const std::vector<double>& under) {
  std::vector<double> out;
  for (size_t i = 0; i < over.size(); ++i) out.push_back(over[i] / under[i]);
  return out;
}

std::string summary(const std::vector<double>& values) {
  char text[96];
  std::snprintf(text, sizeof(text), "\"median\": %.3f, \"min\": %.3f, \"max\": %.3f", median(values), *std::min_element(values.begin(), values.end()),
                *std::max_element(values.begin(), values.end()));
  return text;
}

void print_json(const Plan& plan, const Rounds& medians) {
  std::printf("{\"bytes\": %zu, \"messages\": %d, \"rounds\": %d, \"half_round_trip_us\": [", plan.bytes, plan.messages, plan.rounds);
  for (int flow = 0; flow <= plan.flow; ++flow)
    for (int kind = 0; kind < kKinds; ++kind) {
      std::printf("%s\n  {\"path\": \"%s\", \"flow\": %s, %s, \"each\": [", flow + kind ? "," : "", kNames[kind], flow ? "true" : "false", summary(medians[kind][flow]).c_str());
      for (size_t i = 0; i < medians[kind][flow].size(); ++i) std::printf("%s%.1f", i ? ", " : "", medians[kind][flow][i]);
      std::printf("]}");
    }
  std::printf("],\n \"paired_ratios\": {");
  std::printf("\"module/frames\": {%s}, ", summary(ratios(medians[kModule][0], medians[kFrames][0])).c_str());
  std::printf("\"module/packet\": {%s}, ", summary(ratios(medians[kModule][0], medians[kPacket][0])).c_str());
  std::printf("\"module/tcp\": {%s}", summary(ratios(medians[kModule][0], medians[kTcp][0])).c_str());
  for (int kind = 0; kind < kKinds && plan.flow; ++kind)
    std::printf(",\n  \"%s beside a flow/alone\": {%s}", kNames[kind], summary(ratios(medians[kind][1], medians[kind][0])).c_str());
  std::printf("}}\n");
}

void print_text(const Plan& plan, const Rounds& medians) {
  for (int flow = 0; flow <= plan.flow; ++flow)
    for (int kind = 0; kind < kKinds; ++kind)
      std::printf("%-12s %zu B %s half round trip us: %s of %zu rounds\n", kNames[kind], plan.bytes, flow ? "beside a flow" : "alone", summary(medians[kind][flow]).c_str(),
                  medians[kind][flow].size());
  for (int kind = 0; kind < kKinds && plan.flow; ++kind)
    std::printf("%-12s grows beside a flow by %s (pairs)\n", kNames[kind], summary(ratios(medians[kind][1], medians[kind][0])).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--flow") plan.flow = true;
    if (word == "--json") plan.json = true;
    if (word == "--bytes" && i + 1 < argc) plan.bytes = static_cast<size_t>(std::atoi(argv[++i]));
    if (word == "--messages" && i + 1 < argc) plan.messages = std::atoi(argv[++i]);
    if (word == "--rounds" && i + 1 < argc) plan.rounds = std::atoi(argv[++i]);
  }
  ::signal(SIGCHLD, SIG_DFL);
  ::setpgid(0, 0);
  Module module;
  {
    Wire wire;
    wire.a.space.ip("address add 10.9.0.1/24 dev end0");
    wire.b.space.ip("address add 10.9.0.2/24 dev end0");
    Rounds medians;
    for (int round = 0; round < plan.rounds; ++round) measure_round(wire, plan, round, medians);
    (plan.json ? print_json : print_text)(plan, medians);
  }
  return 0;
}
