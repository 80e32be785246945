#include "tests/module/files.h"

#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "tests/module/memory.h"
#include "tests/module/packet_peer.h"
#include "tests/module/rxe_line.h"

namespace sluice::module_test {
namespace {

// A file of kFileBytes in memory, which both processes see.
struct File {
  Fd fd;
  uint8_t* bytes;
  File() : fd(::memfd_create("file", MFD_CLOEXEC)) {
    if (::ftruncate(fd.value(), kFileBytes) != 0) die("ftruncate");
    void* at = ::mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                      fd.value(), 0);
    if (at == MAP_FAILED) die("mmap");
    bytes = static_cast<uint8_t*>(at);
  }
  ~File() { ::munmap(bytes, kFileBytes); }
};

// One way, once: made in one process, which then forks.
struct Carry {
  File& from;
  File& to;
  int channel = -1;  // between the two processes
  Carry(File& source, File& target) : from(source), to(target) {}
  virtual ~Carry() = default;
  virtual void begin_having() {}
  virtual void begin_fetching() {}
  virtual void have() {}  // returns when the other end has all of it
  virtual void fetch() = 0;
};

void tell(int channel) {
  char word = 1;
  if (::write(channel, &word, 1) != 1) die("write");
}
void await(int channel) {
  char word;
  if (::read(channel, &word, 1) != 1) die("read");
}

struct ByTcp : Carry {
  Fd a, b;
  bool sendfile;
  ByTcp(File& source, File& target, const Wire& wire, uint16_t port, bool by_sendfile)
      : Carry(source, target), sendfile(by_sendfile) {
    std::tie(a, b) = tcp_pair(wire, port);
  }
  void have() override {
    await(b.value());
    off_t at = 0;
    while (static_cast<size_t>(at) < kFileBytes) {
      size_t left = kFileBytes - static_cast<size_t>(at);
      ssize_t sent = sendfile
                         ? ::sendfile(b.value(), from.fd.value(), &at, left)
                         : ::send(b.value(), from.bytes + at, std::min<size_t>(left, 65536), 0);
      if (sent <= 0) die("send");
      if (!sendfile) at += sent;
    }
  }
  void fetch() override {
    tell(a.value());
    for (size_t at = 0; at < kFileBytes;) {
      ssize_t came = ::recv(a.value(), to.bytes + at, kFileBytes - at, 0);
      if (came <= 0) die("recv");
      at += static_cast<size_t>(came);
    }
  }
};

struct ByPacket : Carry {
  PacketPeer a, b;
  uint32_t handle = 0;
  ByPacket(File& source, File& target, const Wire& wire, uint16_t port)
      : Carry(source, target), a(wire.a, port), b(wire.b, port) {
    a.listen();
    b.connect(wire.a.mac, port);
    while (!a.up() || !b.up()) a.turn(1), b.turn(1);
    a.memory.resize(kFileBytes);
    b.memory.assign(from.bytes, from.bytes + kFileBytes);
    if (!slp_open_handle(b.session(), 1, kFileBytes, SLP_READ, &handle)) die("open");
  }
  void have() override {
    char word;
    while (::recv(channel, &word, 1, MSG_DONTWAIT | MSG_PEEK) != 1) b.turn(1);
  }
  void fetch() override {
    if (slp_pull(a.session(), handle, 0, kFileBytes, 1) != SLP_OK) die("pull");
    // Its first frame leaves now, not when something comes.
    a.turn(0);
    while (a.ended.empty()) a.turn(1);
    if (a.ended[0].second != SLP_OK) die("a pull did not end well");
    tell(channel);
    std::memcpy(to.bytes, a.memory.data(), kFileBytes);
  }
};

struct ByModule : Carry {
  Fd a, b;
  sockaddr_sluice to_b;
  ByModule(File& source, File& target, const Wire& wire, uint16_t port)
      : Carry(source, target),
        a(bound_socket(wire.a, port)),
        b(bound_socket(wire.b, port)),
        to_b(seen_from(wire.a, wire.b, port)) {
    if (connect_to(b.value(), seen_from(wire.b, wire.a, port)) != 0) die("connect");
  }
};

struct ByMessages : ByModule {
  using ByModule::ByModule;
  void have() override {
    await(b.value());
    for (size_t at = 0; at < kFileBytes;) {
      ssize_t sent = ::send(b.value(), from.bytes + at,
                            std::min<size_t>(kFileBytes - at, SLUICE_MAX_MESSAGE), 0);
      if (sent <= 0) die("send");
      at += static_cast<size_t>(sent);
    }
  }
  void fetch() override {
    if (send_to(a.value(), "x", to_b) != 1) die("send");
    for (size_t at = 0; at < kFileBytes;) {
      ssize_t came = ::recv(a.value(), to.bytes + at, kFileBytes - at, 0);
      if (came <= 0) die("recv");
      at += static_cast<size_t>(came);
    }
  }
};

struct ByMemory : ByModule {
  Ring ring;
  sluice_transfer pull{};
  ByMemory(File& source, File& target, const Wire& wire, uint16_t port)
      : ByModule(source, target, wire, port), ring(a.value(), 64) {
    uint32_t region = 0;
    int error = register_memory(a.value(), to.bytes, kFileBytes, pull.region);
    if (error == 0) error = register_memory(b.value(), from.bytes, kFileBytes, region);
    if (error == 0)
      error = open_handle(b.value(), sockaddr_sluice{}, region, 0, kFileBytes, SLUICE_MAY_READ,
                          pull.handle);
    if (error != 0) errno = error, die("memory of the module");
    pull.peer = to_b;
    pull.kind = SLUICE_PULL;
    pull.length = kFileBytes;
  }
  void have() override { await(channel); }
  void fetch() override {
    if (int error = transfer(a.value(), pull)) errno = error, die("pull");
    auto end = ring.wait();
    if (!end || end->status != 0) die("a pull did not end well");
    tell(channel);
  }
};

struct ByRxe : Carry {
  std::unique_ptr<Rxe> a, b;
  ByRxe(File& source, File& target) : Carry(source, target) {
    std::tie(a, b) = rxe_pair(false, kFileBytes);
    a->use(to.bytes);
    b->use(from.bytes);
  }
  void begin_having() override { b->begin(); }
  void begin_fetching() override { a->begin(); }
  void have() override { b->end(); }
  void fetch() override { a->read_all(); }
};

std::unique_ptr<Carry> make_carry(Way way, const Place& place, uint16_t port, File& from,
                                  File& to) {
  const Wire& wire = place.wire();
  switch (way) {
    case kByTcp:
    case kBySendfile: return std::make_unique<ByTcp>(from, to, wire, port, way == kBySendfile);
    case kByPacket: return std::make_unique<ByPacket>(from, to, wire, port);
    case kByMessages: return std::make_unique<ByMessages>(from, to, wire, port);
    case kByMemory: return std::make_unique<ByMemory>(from, to, wire, port);
    default: return std::make_unique<ByRxe>(from, to);
  }
}

void fill(uint8_t* bytes, unsigned seed) {
  for (size_t i = 0; i < kFileBytes; i += sizeof(uint32_t)) {
    auto word = static_cast<uint32_t>((i + seed) * 2654435761u);
    std::memcpy(bytes + i, &word, sizeof(word));
  }
}

}  // namespace

const char* name_of(Way way) {
  constexpr const char* kNames[] = {
      "tcp", "tcp sendfile", "packet, pull", "module, messages", "module, memory", "rxe, read"};
  return kNames[way];
}

bool usable(Way way, const Place& place) { return way != kByRxe || place.has_rxe(); }

Fetched fetch_file(Way way, const Place& place, uint16_t port, bool count_calls) {
  File from, to;
  fill(from.bytes, port);
  int channel[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) != 0) die("socketpair");
  Fd ours(channel[0]), theirs(channel[1]);
  auto carry = make_carry(way, place, port, from, to);
  Fetched out;
  std::optional<CallCounter> counter;
  pid_t child = ::fork();
  if (child == 0) {
    pin(1);
    carry->channel = theirs.value();
    carry->begin_having();
    if (count_calls) counter.emplace();
    await(theirs.value());
    carry->have();
    uint64_t calls = count_calls ? counter->count() - 1 : 0;
    if (::write(theirs.value(), &calls, sizeof(calls)) != sizeof(calls)) die("write");
    ::_exit(0);
  }
  pin(0);
  carry->channel = ours.value();
  carry->begin_fetching();
  if (count_calls) counter.emplace();
  tell(ours.value());
  double begin = now_us();
  carry->fetch();
  out.us = now_us() - begin;
  if (count_calls) out.calls[0] = counter->count() - 1;
  if (way == kByRxe) static_cast<ByRxe&>(*carry).a->end();
  if (::read(ours.value(), &out.calls[1], sizeof(uint64_t)) != sizeof(uint64_t))
    die("the other end");
  ::waitpid(child, nullptr, 0);
  if (std::memcmp(from.bytes, to.bytes, kFileBytes) != 0) die("a file came changed");
  return out;
}

}  // namespace sluice::module_test
