// Attacks by what comes with packets: descriptors of every kind, where one is expected and where
// none is.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <signal.h>

#include "tests/hostile/attacker/shm.h"

namespace hostile {
namespace {

// One of every kind that a process without privileges can have.
struct EveryKind {
  EveryKind() {
    int ends[2];
    auto keep = [&](int fd) {
      if (fd >= 0) fds.push_back(fd);
    };
    if (::pipe2(ends, O_CLOEXEC) == 0) keep(ends[0]), keep(ends[1]);
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0)
      keep(ends[0]), keep(ends[1]);
    keep(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    keep(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    for (const char* path : {"/dev/null", "/dev/zero", "/proc/self/maps", "/proc/self/mem", "/"})
      keep(::open(path, O_RDONLY | O_CLOEXEC));
    keep(::open("/tmp", O_PATH | O_CLOEXEC));
    keep(::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    keep(::eventfd(1, EFD_CLOEXEC));
    keep(::epoll_create1(EPOLL_CLOEXEC));
    keep(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
    keep(::inotify_init1(IN_CLOEXEC));
    sigset_t none;
    sigemptyset(&none);
    keep(::signalfd(-1, &none, SFD_CLOEXEC));
    keep(sealed_memory("bare", sizeof(Region), 0));
    keep(sealed_memory("half", sizeof(Region), F_SEAL_SHRINK | F_SEAL_GROW));
    keep(sealed_memory("no shrink", sizeof(Region),
                       F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL));
    keep(sealed_memory("small", 4096, usual_seals()));
    keep(sealed_memory("nothing", 0, usual_seals()));
    keep(sealed_memory("all zeros", sizeof(Region), usual_seals()));
    keep(sealed_memory("no writes", sizeof(Region), usual_seals() | F_SEAL_WRITE));
    keep(sealed_memory("huge", size_t{1} << 46, usual_seals()));
    keep(::memfd_create("closed to seals", MFD_CLOEXEC));
    int holes = ::memfd_create("holes", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (holes >= 0 && ::ftruncate(holes, 4 << 20) == 0) ::fcntl(holes, F_ADD_SEALS, usual_seals());
    keep(holes);
  }
  ~EveryKind() {
    for (int fd : fds) ::close(fd);
  }
  std::vector<int> fds;
};

void wait_for_end(Siege&, ShmPeer& peer) {
  auto end = Siege::Clock::now() + std::chrono::seconds(2);
  while (peer.alive() && Siege::Clock::now() < end) (void)peer.listen(10);
}

// In the place of the control region.
void hello_with_every_kind(Siege& siege) {
  EveryKind kinds;
  uint64_t refused = 0, tried = 0;
  for (uint64_t round = 0; round < 2 * siege.dose && siege.more(); ++round) {
    for (int fd : kinds.fds) {
      ShmPeer peer(siege);
      if (!peer.connect()) continue;
      ++tried;
      bool met = peer.say_hello(peer.fields(), {fd}) && peer.hear_hello();
      refused += met ? 0 : 1;
    }
  }
  siege.must(tried >= 20 && refused == tried,
             "each is refused: " + std::to_string(refused) + " of " + std::to_string(tried));
}

void hello_with_many(Siege& siege) {
  EveryKind kinds;
  for (uint64_t i = 0; i < 40 * siege.dose && siege.more(); ++i) {
    ShmPeer peer(siege);
    if (!peer.connect()) continue;
    std::vector<int> many;
    if (i % 2 == 1) many.push_back(-1);
    for (size_t k = 0; k < 2 + i * 6; ++k) many.push_back(kinds.fds[k % kinds.fds.size()]);
    if (i % 5 == 0) many.clear();
    (void)(peer.say_hello(peer.fields(), many) && peer.hear_hello());
  }
  siege.must(siege.seen.descriptors_out >= 1000, "1000 descriptors");
}

// With bells, ends, nothing at all, and words that are not known, in a conversation.
void packets_with_descriptors(Siege& siege) {
  EveryKind kinds;
  const std::vector<Bytes> packets = {
      {},           {1},          {2},          {0},           {7},
      Bytes(24, 0), Bytes(23, 1), Bytes(25, 1), Bytes(200, 1), Bytes(5000, 1)};
  for (uint64_t round = 0; round < 4 * siege.dose && siege.more(); ++round) {
    for (const Bytes& packet : packets) {
      ShmPeer peer(siege);
      if (!peer.greet()) continue;
      size_t count = round % 4 == 0 ? 1 : round % 4 == 1 ? 3 : round % 4 == 2 ? 8 : 250;
      std::vector<int> passed;
      for (size_t k = 0; k < count; ++k)
        passed.push_back(kinds.fds[(round + k) % kinds.fds.size()]);
      (void)peer.packet(packet, passed);
      (void)peer.packet(packet, passed);
      wait_for_end(siege, peer);
    }
  }
  siege.must(siege.seen.descriptors_out >= 500, "500 descriptors");
  siege.must(siege.seen.cut_off >= packets.size(), "the other end ends such conversations");
}

// One descriptor with each empty packet, and the connection stays: the 60 that once stayed as well.
void empty_packets(Siege& siege) {
  int fd = ::eventfd(0, EFD_CLOEXEC);
  std::vector<std::unique_ptr<ShmPeer>> all;
  for (uint64_t i = 0; i < 60 * siege.dose && siege.more(); ++i) {
    auto peer = std::make_unique<ShmPeer>(siege);
    if (!peer->greet()) break;
    (void)peer->packet({}, {fd});
    all.push_back(std::move(peer));
  }
  ::close(fd);
  siege.must(siege.seen.descriptors_out >= 40, "40 descriptors");
  siege.hold([&] {
    for (auto& peer : all) (void)peer->listen(0);
  });
}

// As memory that is announced.
void extents_of_every_kind(Siege& siege) {
  EveryKind kinds;
  uint64_t refused = 0, tried = 0;
  for (uint64_t round = 0; round < 2 * siege.dose && siege.more(); ++round) {
    for (int fd : kinds.fds) {
      ShmPeer peer(siege);
      if (!peer.greet()) continue;
      ++tried;
      (void)peer.announce(1, 0, 2 << 20, fd);
      // An offer has it looked at now, not when the socket is read.
      (void)peer.send(
          offer(1, kTagged, kCommandTag, 128).tlv(kSegment, segment(1, 0, 128)).whole());
      wait_for_end(siege, peer);
      refused += peer.alive() ? 0 : 1;
    }
  }
  siege.must(tried >= 20 && refused == tried,
             "each is refused: " + std::to_string(refused) + " of " + std::to_string(tried));
}

// A socket that carries itself, in packets that are never read: the kernel's own collector has
// work.
void sockets_in_sockets(Siege& siege) {
  for (uint64_t i = 0; i < 30 * siege.dose && siege.more(); ++i) {
    ShmPeer peer(siege);
    if (!peer.greet()) continue;
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) continue;
    (void)peer.packet({1}, {ends[0], ends[1], peer.fd()});
    ::close(ends[0]);
    ::close(ends[1]);
    wait_for_end(siege, peer);
  }
  siege.must(siege.seen.descriptors_out >= 60, "60 descriptors");
}

// Announced by the thousand, 2 MiB each, without a page behind them.
void extents_flood(Siege& siege) {
  int memory = sealed_memory("extent", 2 << 20, usual_seals());
  std::vector<std::unique_ptr<ShmPeer>> all;
  uint64_t announced = 0;
  for (int i = 0; i < 4 && siege.more(); ++i) {
    auto peer = std::make_unique<ShmPeer>(siege);
    HelloFields fields = peer->fields();
    fields.arena_bytes = uint64_t{1} << 40;
    if (!peer->connect() || !peer->say_hello(fields, {-1}) || !peer->hear_hello()) continue;
    auto until = std::min(siege.end, Siege::Clock::now() + std::chrono::seconds(2));
    for (uint32_t k = 0; k < 6000 * siege.dose && Siege::Clock::now() < until; ++k) {
      if (!peer->announce(k + 1, uint64_t{4} * k << 20, 2 << 20, memory)) break;
      ++announced;
    }
    all.push_back(std::move(peer));
  }
  ::close(memory);
  siege.note(std::to_string(announced) + " announced");
  siege.must(announced >= 500, "500 extents");
  siege.hold([&] {
    for (auto& peer : all) (void)peer->listen(0);
  });
}

// Over each other, of the same number, outside the range.
void extents_contradict(Siege& siege) {
  int memory = sealed_memory("extent", 8 << 20, usual_seals());
  const uint64_t m = 2 << 20;
  struct Place {
    uint32_t id;
    uint64_t offset, length;
  };
  const std::vector<std::vector<Place>> variants = {
      {{1, 0, m}, {1, m, m}}, {{1, 1ull << 62, m}},   {{1, 0, 0}},
      {{1, 4096, m}},         {{1, 0, m + 4096}},     {{1, ~0ull - m + 1, m}},
      {{1, 0, 16 * m}},       {{0, 0, m}, {0, m, m}}, {{1, (1ull << 30) - m, 2 * m}}};
  uint64_t refused = 0, tried = 0;
  for (uint64_t round = 0; round < 2 * siege.dose && siege.more(); ++round) {
    for (const auto& variant : variants) {
      ShmPeer peer(siege);
      if (!peer.greet()) continue;
      ++tried;
      for (const Place& place : variant)
        (void)peer.announce(place.id, place.offset, place.length, memory);
      wait_for_end(siege, peer);
      refused += peer.alive() ? 0 : 1;
    }
  }
  // One place over the other is how memory that was given back is announced anew: allowed, again
  // and again.
  ShmPeer peer(siege);
  if (peer.greet()) {
    for (uint32_t k = 0; k < 3000 * siege.dose && siege.more(); ++k) {
      if (!peer.announce(k + 1, k % 3 * m, m * (1 + k % 2), memory)) break;
    }
    (void)peer.listen(20);
  }
  ::close(memory);
  siege.must(
      tried > 0 && refused == tried,
      "contradictions are refused: " + std::to_string(refused) + " of " + std::to_string(tried));
}

// As many addresses as a process has, claimed by a few.
void address_space(Siege& siege) {
  int memory = sealed_memory("extent", 2 << 20, usual_seals());
  std::vector<std::unique_ptr<ShmPeer>> all;
  for (uint64_t i = 0; i < 12 && siege.more(); ++i) {
    auto peer = std::make_unique<ShmPeer>(siege);
    HelloFields fields = peer->fields();
    fields.arena_bytes = i < 9 ? uint64_t{1} << (46 - i / 4) : i == 9 ? 0 : ~0ull - i;
    if (!peer->connect() || !peer->say_hello(fields, {-1}) || !peer->hear_hello()) continue;
    (void)peer->announce(1, 0, 2 << 20, memory);
    (void)peer->listen(5);
    all.push_back(std::move(peer));
  }
  ::close(memory);
  siege.must(siege.seen.connections >= 12, "12 connections");
  siege.hold([&] {
    for (auto& peer : all) (void)peer->listen(0);
  });
}

const Registered registered(
    "shm",
    {
        {"hello_with_every_kind", "every kind of descriptor in the place of the control region",
         hello_with_every_kind},
        {"hello_with_many", "no, many or 253 descriptors with HELLO", hello_with_many},
        {"packets_with_descriptors", "descriptors with bells, ends and unknown words",
         packets_with_descriptors},
        {"empty_packets", "a descriptor with a packet of no bytes", empty_packets},
        {"extents_of_every_kind", "every kind of descriptor as memory", extents_of_every_kind},
        {"sockets_in_sockets", "sockets that carry themselves", sockets_in_sockets},
        {"extents_flood", "thousands of extents", extents_flood},
        {"extents_contradict", "extents outside, over and again", extents_contradict},
        {"address_space", "arenas that take all addresses", address_space},
    });

}  // namespace
}  // namespace hostile
