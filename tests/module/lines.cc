#include "tests/module/lines.h"

#include <arpa/inet.h>
#include <linux/ethtool.h>
#include <linux/if_packet.h>
#include <linux/perf_event.h>
#include <linux/sockios.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <tuple>

#include "tests/module/memory.h"
#include "tests/module/packet_peer.h"

namespace sluice::module_test {

void die(const char* what) {
  std::fprintf(stderr, "figures: %s: %s\n", what, std::strerror(errno));
  std::_Exit(1);
}

namespace {

struct Plain : Talker {
  Fd fd;
  void say(const std::string& text) override {
    if (::send(fd.value(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
      die("send");
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
  void end() override { peer->turn(5); }  // acknowledgements that are still due
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

Line make_inet(const Wire& wire, int type, uint16_t port) {
  auto a = std::make_unique<Plain>(), b = std::make_unique<Plain>();
  sockaddr_in home = at("10.9.0.1", port), away = at("10.9.0.2", port);
  int yes = 1;
  Fd listening = inet_socket(wire.b, type);
  ::setsockopt(listening.value(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(listening.value(), reinterpret_cast<sockaddr*>(&away), sizeof(away)) != 0) die("bind");
  a->fd = inet_socket(wire.a, type);
  if (type == SOCK_STREAM) {
    if (::listen(listening.value(), 1) != 0 ||
        ::connect(a->fd.value(), reinterpret_cast<sockaddr*>(&away), sizeof(away)) != 0)
      die("connect");
    b->fd = Fd(::accept(listening.value(), nullptr, nullptr));
    for (Plain* end : {a.get(), b.get()})
      ::setsockopt(end->fd.value(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
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
    if (::sendto(fd.value(), text.data(), text.size(), 0, reinterpret_cast<sockaddr*>(&to),
                 sizeof(to)) < 0)
      die("sendto");
  }
};

Line make_frames(const Wire& wire) {
  auto a = std::make_unique<Frames>(), b = std::make_unique<Frames>();
  for (auto [end, from, other] :
       {std::tuple{a.get(), &wire.a, &wire.b}, std::tuple{b.get(), &wire.b, &wire.a}}) {
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
  sockaddr_sluice to{};  // zero: it called, and is connected
  void say(const std::string& text) override {
    if (to.family == 0) return Plain::say(text);
    if (send_to(fd.value(), text, to) < 0) die("sendto");
  }
};

// Asks before it sends and before it reads, as programs do that serve many: two calls for each of
// ours.
struct Asking : Named {
  void say(const std::string& text) override {
    pollfd room{.fd = fd.value(), .events = POLLOUT, .revents = 0};
    if (::poll(&room, 1, -1) != 1) die("poll");
    Named::say(text);
  }
  std::string hear(size_t bytes) override {
    char nothing;
    if (::recv(fd.value(), &nothing, 0, MSG_PEEK | MSG_TRUNC) != static_cast<ssize_t>(bytes))
      die("peek");
    return Named::hear(bytes);
  }
};

// Pushes with a notice, and finds the peer's in its ring: one call for a message, none to read it.
struct Pushing : Talker {
  static constexpr size_t kRoom = 4096;
  Fd fd;
  std::unique_ptr<Ring> ring;
  uint8_t* memory = nullptr;  // of both processes: what goes out, then what comes in
  uint32_t region = 0;
  sluice_transfer push{};
  ~Pushing() override { ::munmap(memory, 2 * kRoom); }
  void say(const std::string& text) override {
    std::memcpy(memory, text.data(), text.size());
    push.length = text.size();
    if (int error = transfer(fd.value(), push)) errno = error, die("push");
  }
  std::string hear(size_t bytes) override {
    for (;;) {
      auto entry = ring->take();
      if (entry && entry->status != 0) die("a push did not end well");
      if (entry && entry->kind == SLUICE_PUSH_NOTICE)
        return {reinterpret_cast<char*>(memory) + kRoom, bytes};
    }
  }
};

template <typename End>
std::pair<std::unique_ptr<End>, std::unique_ptr<End>> module_ends(const Wire& wire, uint16_t port) {
  auto a = std::make_unique<End>(), b = std::make_unique<End>();
  a->fd = bound_socket(wire.a, port);
  b->fd = bound_socket(wire.b, port);
  if (connect_to(b->fd.value(), seen_from(wire.b, wire.a, port)) != 0) die("connect");
  return {std::move(a), std::move(b)};
}

template <typename End>
Line make_module(const Wire& wire, uint16_t port, int spin_us) {
  auto [a, b] = module_ends<End>(wire, port);
  a->to = seen_from(wire.a, wire.b, port);
  for (int fd : {a->fd.value(), b->fd.value()})
    ::setsockopt(fd, SOL_SLUICE, SLUICE_SPIN_US, &spin_us, sizeof(spin_us));
  return {std::move(a), std::move(b)};
}

Line make_pushing(const Wire& wire, uint16_t port) {
  auto [a, b] = module_ends<Pushing>(wire, port);
  sockaddr_sluice names[2] = {seen_from(wire.a, wire.b, port), sockaddr_sluice{}};
  Pushing* ends[2] = {a.get(), b.get()};
  for (int i = 0; i < 2; ++i) {
    Pushing& end = *ends[i];
    void* at = ::mmap(nullptr, 2 * Pushing::kRoom, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) die("mmap");
    end.memory = static_cast<uint8_t*>(at);
    end.ring = std::make_unique<Ring>(end.fd.value(), 64);
    int error = register_memory(end.fd.value(), at, 2 * Pushing::kRoom, end.region);
    uint32_t handle = 0;
    if (error == 0)
      error = open_handle(end.fd.value(), names[i], end.region, Pushing::kRoom, Pushing::kRoom,
                          SLUICE_MAY_WRITE, handle);
    if (error != 0) errno = error, die("memory of the module");
    ends[1 - i]->push.handle = handle;
    end.push.peer = names[i];
    end.push.kind = SLUICE_PUSH_NOTICE;
    end.push.region = end.region;
  }
  return {std::move(a), std::move(b)};
}

// No wire and no kernel: words of two processes.
struct Shared : Talker {
  struct Box {
    std::atomic<uint32_t> number;
    char text[8192];
  };
  std::shared_ptr<Box[]> boxes;
  int own = 0;
  uint32_t said = 0, heard = 0;
  void say(const std::string& text) override {
    std::memcpy(boxes[own].text, text.data(), text.size());
    boxes[own].number.store(++said, std::memory_order_release);
  }
  std::string hear(size_t bytes) override {
    ++heard;
    while (boxes[1 - own].number.load(std::memory_order_acquire) != heard) {}
    return {boxes[1 - own].text, bytes};
  }
};

Line make_shared_memory() {
  auto a = std::make_unique<Shared>(), b = std::make_unique<Shared>();
  void* at = ::mmap(nullptr, 2 * sizeof(Shared::Box), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) die("mmap");
  a->boxes = b->boxes = std::shared_ptr<Shared::Box[]>(
      static_cast<Shared::Box*>(at),
      [](Shared::Box* box) { ::munmap(box, 2 * sizeof(Shared::Box)); });
  b->own = 1;
  return {std::move(a), std::move(b)};
}

bool run(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

// Two addresses of one machine find each other by the wire: what comes in by it is ours, what goes
// out is not looked up there first.
bool make_rxe_wire(int mtu) {
  const char* steps[] = {
      "ip link add va type veth peer name vb",
      "ip address add 10.10.0.1/32 dev va && ip address add 10.10.0.2/32 dev vb",
      "for n in va vb; do for k in accept_local=1 rp_filter=0; do echo ${k#*=} "
      ">/proc/sys/net/ipv4/conf/$n/${k%=*} || exit 1; done; done",
      "echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter",
      "ip route add 10.10.0.2 dev va src 10.10.0.1 table 77 && ip route add 10.10.0.1 dev vb src "
      "10.10.0.2 table 77",
      "ip neigh replace 10.10.0.2 lladdr $(cat /sys/class/net/vb/address) dev va nud permanent",
      "ip neigh replace 10.10.0.1 lladdr $(cat /sys/class/net/va/address) dev vb nud permanent",
      "ip rule add pref 5 iif va lookup local && ip rule add pref 6 iif vb lookup local && ip rule "
      "add pref 7 to 10.10.0.0/24 lookup 77",
      "ip rule add pref 50 lookup local && ip rule del pref 0",
      "rdma link add rxa type rxe netdev va && rdma link add rxb type rxe netdev vb",
  };
  if (!run(steps[0]) || !run("ip link set va mtu " + std::to_string(mtu) +
                             " up && ip link set vb mtu " + std::to_string(mtu) + " up"))
    return false;
  return std::all_of(std::begin(steps) + 1, std::end(steps),
                     [](const char* step) { return run(step); });
}

}  // namespace

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"tcp",    "udp",         "frames",      "packet",
                                    "module", "module_spin", "module_ring", "module_four",
                                    "rxe",    "rxe_spin",    "memory"};
  return kNames[kind];
}

Place::Place(int mtu) : wire_(mtu) {
  wire_.a.space.ip("address add 10.9.0.1/24 dev end0");
  wire_.b.space.ip("address add 10.9.0.2/24 dev end0");
  has_rxe_ = make_rxe_wire(mtu);
}

Place::~Place() {
  run("rdma link delete rxa; rdma link delete rxb; ip rule add pref 0 lookup local; for p in 5 6 7 "
      "50; do ip rule del pref $p; done; ip link delete va");
}

void Place::offloads(bool on) const {
  auto set = [on](const char* interface) {
    Fd any(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    // Segmentation needs the two before it.
    for (uint32_t command :
         {ETHTOOL_STXCSUM, ETHTOOL_SSG, ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO}) {
      ethtool_value value{.cmd = command, .data = on};
      ifreq request{};
      std::strcpy(request.ifr_name, interface);
      request.ifr_data = reinterpret_cast<char*>(&value);
      if (::ioctl(any.value(), SIOCETHTOOL, &request) != 0) die("an offload cannot be set");
    }
  };
  for (const End* end : {&wire_.a, &wire_.b}) end->space.run([&] { set("end0"); });
  if (has_rxe_) set("va"), set("vb");
}

Fd inet_socket(const End& end, int type) {
  return end.space.run([&] { return Fd(::socket(AF_INET, type | SOCK_CLOEXEC, 0)); });
}

bool usable(Kind kind, const Place& place) {
  return (kind != kRxe && kind != kRxeSpin) || place.has_rxe();
}

Line make_line(Kind kind, const Place& place, uint16_t port) {
  constexpr int kSpinUs = 1000000;
  const Wire& wire = place.wire();
  switch (kind) {
    case kTcp: return make_inet(wire, SOCK_STREAM, port);
    case kUdp: return make_inet(wire, SOCK_DGRAM, port);
    case kFrames: return make_frames(wire);
    case kPacket: return make_packet(wire, port);
    case kModule: return make_module<Named>(wire, port, 0);
    case kModuleSpin: return make_module<Named>(wire, port, kSpinUs);
    case kModuleRing: return make_pushing(wire, port);
    case kModuleFour: return make_module<Asking>(wire, port, kSpinUs);
    case kRxe:
    case kRxeSpin: return make_rxe(kind == kRxeSpin, 8192);
    default: return make_shared_memory();
  }
}

std::pair<Fd, Fd> tcp_pair(const Wire& wire, uint16_t port) {
  Line line = make_inet(wire, SOCK_STREAM, port);
  return {std::move(static_cast<Plain&>(*line.a).fd), std::move(static_cast<Plain&>(*line.b).fd)};
}

pid_t start_flow(const Wire& wire) {
  auto [to, from] = tcp_pair(wire, 5999);
  pid_t flow = ::fork();
  if (flow != 0) return flow;
  if (::fork() == 0) {
    std::string sink(65536, '\0');
    from.reset();
    while (::recv(to.value(), sink.data(), sink.size(), 0) > 0) {}
    ::_exit(0);
  }
  unsigned rate = 8 << 20;
  ::setsockopt(from.value(), SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
  std::string bulk(65536, 'b');
  while (::send(from.value(), bulk.data(), bulk.size(), 0) > 0) {}
  ::_exit(0);
}

void stop_flow(pid_t flow) {
  ::kill(flow, SIGKILL);
  ::waitpid(flow, nullptr, 0);
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
  size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

CallCounter::CallCounter() {
  uint64_t id = 0;
  std::ifstream("/sys/kernel/debug/tracing/events/raw_syscalls/sys_enter/id") >> id;
  perf_event_attr wanted{};
  wanted.type = PERF_TYPE_TRACEPOINT;
  wanted.size = sizeof(wanted);
  wanted.config = id;
  fd_ = static_cast<int>(::syscall(SYS_perf_event_open, &wanted, 0, -1, -1, 0));
  if (id == 0 || fd_ < 0) die("system calls cannot be counted");
}

CallCounter::~CallCounter() { ::close(fd_); }

uint64_t CallCounter::count() {
  uint64_t calls = 0;
  if (::read(fd_, &calls, sizeof(calls)) != sizeof(calls)) die("read of a counter");
  return calls - ++own_;
}

}  // namespace sluice::module_test
