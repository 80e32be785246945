// Registered memory: pulled and pushed between sockets of the module, and packet sockets. Which
// memory may be pinned: pinning_test.cc.
#include <catch2/catch.hpp>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/module/memory.h"
#include "tests/module/packet_peer.h"
#include "tests/module/wire.h"

namespace sluice::module_test {
namespace {

constexpr size_t kBytes = (1 << 20) + 777;
constexpr sockaddr_sluice kConnected{};

void fill(uint8_t* data, size_t bytes, unsigned seed) {
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>((i * 2654435761u + seed) >> 13);
}

bool holds(const uint8_t* data, size_t bytes, unsigned seed) {
  for (size_t i = 0; i < bytes; ++i)
    if (data[i] != static_cast<uint8_t>((i * 2654435761u + seed) >> 13)) return false;
  return true;
}

sluice_transfer request(uint32_t kind, uint32_t region, uint64_t offset, uint64_t length,
                        uint32_t handle, uint64_t peer_offset, uint64_t user_data) {
  sluice_transfer out{};
  out.kind = kind;
  out.region = region;
  out.offset = offset;
  out.length = length;
  out.handle = handle;
  out.peer_offset = peer_offset;
  out.user_data = user_data;
  return out;
}

// A client that is connected to a server, which has heard of it.
struct Pair {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space);
  sockaddr_sluice caller{};
  Ring server_ring{server.value(), 64}, client_ring{client.value(), 64};
  Pages server_pages{kBytes + 8192}, client_pages{kBytes + 8192};
  uint32_t server_region = 99, client_region = 99;
  Pair() {
    REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
    REQUIRE(send_on(client.value(), "here I am") == 9);
    caller = receive(server.value()).from;
    REQUIRE(register_memory(server.value(), server_pages.data() + 100, kBytes, server_region) == 0);
    REQUIRE(register_memory(client.value(), client_pages.data() + 50, kBytes, client_region) == 0);
  }
  uint8_t* at_server() const { return server_pages.data() + 100; }
  uint8_t* at_client() const { return client_pages.data() + 50; }
};

TEST_CASE(
    "a megabyte is pulled, and pushed back with a notice, into the places that were named and no "
    "others") {
  Pair pair;
  fill(pair.at_server(), kBytes, 1);
  uint32_t handle = 0;
  REQUIRE(open_handle(pair.server.value(), pair.caller, pair.server_region, 0, kBytes,
                      SLUICE_MAY_READ | SLUICE_MAY_WRITE, handle, 77) == 0);
  REQUIRE(transfer(pair.client.value(),
                   request(SLUICE_PULL, pair.client_region, 0, kBytes, handle, 0, 5)) == 0);
  auto end = pair.client_ring.wait();
  REQUIRE(end);
  CHECK(end->user_data == 5);
  CHECK(end->status == SLP_OK);
  CHECK(end->length == kBytes);
  CHECK(end->kind == SLUICE_PULL);
  CHECK(end->port == 7000);
  CHECK(holds(pair.at_client(), kBytes, 1));
  CHECK(pair.client_pages.data()[49] == 0);
  CHECK(pair.at_client()[kBytes] == 0);

  fill(pair.at_client(), kBytes, 2);
  sluice_transfer push =
      request(SLUICE_PUSH_NOTICE, pair.client_region, 1000, 500000, handle, 3000, 6);
  push.notice = 4711;
  REQUIRE(transfer(pair.client.value(), push) == 0);
  auto told = pair.server_ring.wait();
  REQUIRE(told);
  CHECK(told->kind == SLUICE_PUSH_NOTICE);
  CHECK(told->notice == 4711);
  CHECK(told->user_data == 77);
  CHECK(std::equal(pair.at_client() + 1000, pair.at_client() + 501000, pair.at_server() + 3000));
  CHECK(holds(pair.at_server(), 3000, 1));
  end = pair.client_ring.wait();
  REQUIRE(end);
  CHECK(end->user_data == 6);
  CHECK(end->status == SLP_OK);
  // One copy in at the reader: into the page.
  CHECK(counter(pair.wire.a.space, "bytes_copied_in") < kBytes + 10000);
}

TEST_CASE("what the handle does not allow is refused, and the session goes on") {
  Pair pair;
  uint32_t handle = 0;
  REQUIRE(open_handle(pair.server.value(), pair.caller, pair.server_region, 4096, 8192,
                      SLUICE_MAY_READ, handle) == 0);
  struct Case {
    uint32_t kind, handle;
    uint64_t offset, length;
    uint32_t status;
  };
  for (Case c : {Case{SLUICE_PUSH, handle, 0, 10, SLP_NO_RIGHT},
                 Case{SLUICE_PULL, handle, 8190, 3, SLP_BAD_RANGE},
                 Case{SLUICE_PULL, handle + 1, 0, 3, SLP_BAD_HANDLE},
                 Case{SLUICE_PULL, handle, ~uint64_t{0} - 4000, 3, SLP_BAD_RANGE},
                 Case{SLUICE_PULL, handle, 8189, 3, SLP_OK}}) {
    REQUIRE(transfer(pair.client.value(), request(c.kind, pair.client_region, 0, c.length, c.handle,
                                                  c.offset, c.offset)) == 0);
    auto end = pair.client_ring.wait();
    REQUIRE(end);
    CHECK(end->status == c.status);
  }
  // A closed handle is nobody's.
  REQUIRE(close_handle(pair.server.value(), pair.caller, handle) == 0);
  CHECK(close_handle(pair.server.value(), pair.caller, handle) == EBADSLT);
  REQUIRE(transfer(pair.client.value(),
                   request(SLUICE_PULL, pair.client_region, 0, 3, handle, 0, 1)) == 0);
  CHECK(pair.client_ring.wait()->status == SLP_BAD_HANDLE);
}

TEST_CASE("a handle begins where its owner says, and a peer that was not told reaches nothing") {
  Pair pair;
  constexpr uint64_t kBase = 0x1234'5678'9abc'def0, kLength = 8192;
  fill(pair.at_server(), kBytes, 3);
  uint32_t handle = 0;
  REQUIRE(open_handle(pair.server.value(), pair.caller, pair.server_region, 4096, kLength,
                      SLUICE_MAY_READ | SLUICE_MAY_WRITE, handle, 0, kBase) == 0);
  auto ends_with = [&](uint32_t kind, uint64_t offset, uint64_t length) {
    REQUIRE(transfer(pair.client.value(),
                     request(kind, pair.client_region, 0, length, handle, offset, offset)) == 0);
    auto end = pair.client_ring.wait();
    REQUIRE(end);
    return end->status;
  };
  for (uint32_t kind : {SLUICE_PULL, SLUICE_PUSH}) {
    for (uint64_t offset : {uint64_t{0}, kLength - 10, kBase - 1, kBase ^ uint64_t{1} << 61,
                            kBase + kLength, kBase + kLength - 9})
      CHECK(ends_with(kind, offset, 10) == SLP_BAD_RANGE);
  }
  CHECK(holds(pair.at_server(), kBytes, 3));
  // The part's own bytes, first and last.
  CHECK(ends_with(SLUICE_PULL, kBase, 10) == SLP_OK);
  CHECK(std::memcmp(pair.at_client(), pair.at_server() + 4096, 10) == 0);
  CHECK(ends_with(SLUICE_PULL, kBase + kLength - 10, 10) == SLP_OK);
  CHECK(std::memcmp(pair.at_client(), pair.at_server() + 4096 + kLength - 10, 10) == 0);
  std::memset(pair.at_client(), 0x5e, 10);
  CHECK(ends_with(SLUICE_PUSH, kBase + 100, 10) == SLP_OK);
  CHECK(std::memcmp(pair.at_client(), pair.at_server() + 4096 + 100, 10) == 0);
}

TEST_CASE("requests that make no sense are refused here") {
  Pair pair;
  int fd = pair.client.value();
  uint32_t handle = 0, region = 0;
  CHECK(register_memory(fd, pair.client_pages.data(), 0, region) == EINVAL);
  CHECK(register_memory(fd, nullptr, 4096, region) == EFAULT);
  CHECK(register_memory(fd, reinterpret_cast<void*>(0xffff888000000000u), 4096, region) == EFAULT);
  CHECK(register_memory(fd, reinterpret_cast<void*>(~uintptr_t{4095}), 8192, region) == EINVAL);
  CHECK(register_memory(fd, pair.client_pages.data(), ~uint64_t{0}, region) == EINVAL);
  CHECK(open_handle(fd, kConnected, 63, 0, 10, SLUICE_MAY_READ, handle) == EBADSLT);
  CHECK(open_handle(fd, kConnected, 64, 0, 10, SLUICE_MAY_READ, handle) == EBADSLT);
  CHECK(open_handle(fd, kConnected, pair.client_region, kBytes, 1, SLUICE_MAY_READ, handle) ==
        EINVAL);
  CHECK(open_handle(fd, kConnected, pair.client_region, 1, kBytes, SLUICE_MAY_READ, handle) ==
        EINVAL);
  CHECK(open_handle(fd, kConnected, pair.client_region, ~uint64_t{0}, 2, SLUICE_MAY_READ, handle) ==
        EINVAL);
  CHECK(open_handle(fd, kConnected, pair.client_region, 0, 1, 4, handle) == EINVAL);
  CHECK(open_handle(fd, kConnected, pair.client_region, 0, 1, 0, handle) == EINVAL);
  CHECK(open_handle(fd, kConnected, pair.client_region, 0, 1, SLUICE_MAY_READ, handle, 0,
                    SLUICE_MAX_BASE + 1) == EINVAL);
  CHECK(transfer(fd, request(0, pair.client_region, 0, 1, 0, 0, 0)) == EINVAL);
  CHECK(transfer(fd, request(SLUICE_PULL, 5, 0, 1, 0, 0, 0)) == EBADSLT);
  CHECK(transfer(fd, request(SLUICE_PULL, pair.client_region, 0, 0, 0, 0, 0)) == EINVAL);
  CHECK(transfer(fd, request(SLUICE_PULL, pair.client_region, 0, 2, 0, ~uint64_t{0}, 0)) == EINVAL);
  CHECK(cancel(fd, 12345) == ENOENT);
  CHECK(unregister_memory(fd, 7) == EBADSLT);
  CHECK(unregister_memory(fd, ~0u) == EBADSLT);
  int entries = 64;
  CHECK(::setsockopt(fd, SOL_SLUICE, SLUICE_RING, &entries, sizeof(entries)) == -1);
  CHECK(errno == EBUSY);
  CHECK(::mmap(nullptr, 4096 * 64, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
  Fd bare = open_socket(pair.wire.a.space);
  CHECK(::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, bare.value(), 0) == MAP_FAILED);
  for (int wrong : {0, -1, 3, 8192})
    CHECK(::setsockopt(bare.value(), SOL_SLUICE, SLUICE_RING, &wrong, sizeof(wrong)) == -1);
}

TEST_CASE("a region in use is not unregistered; a transfer can be cancelled") {
  Pair pair;
  uint32_t handle = 0;
  // Nobody answers for a handle of a server whose interface is down.
  REQUIRE(open_handle(pair.server.value(), pair.caller, pair.server_region, 0, kBytes,
                      SLUICE_MAY_READ, handle) == 0);
  CHECK(unregister_memory(pair.server.value(), pair.server_region) == EBUSY);
  pair.wire.b.space.ip("link set end0 down");
  REQUIRE(transfer(pair.client.value(),
                   request(SLUICE_PULL, pair.client_region, 0, kBytes, handle, 0, 9)) == 0);
  CHECK(unregister_memory(pair.client.value(), pair.client_region) == EBUSY);
  REQUIRE(cancel(pair.client.value(), 9) == 0);
  auto end = pair.client_ring.take();
  REQUIRE(end);
  CHECK(end->status == SLP_CANCELLED);
  CHECK(unregister_memory(pair.client.value(), pair.client_region) == 0);
  REQUIRE(close_handle(pair.server.value(), pair.caller, handle) == 0);
  CHECK(unregister_memory(pair.server.value(), pair.server_region) == 0);
}

TEST_CASE("transfers of a peer that is gone end, each once") {
  Pair pair;
  uint32_t handle = 0;
  REQUIRE(open_handle(pair.server.value(), pair.caller, pair.server_region, 0, kBytes,
                      SLUICE_MAY_READ, handle) == 0);
  pair.wire.b.space.ip("link set end0 down");
  for (uint64_t i = 0; i < 16; ++i)
    REQUIRE(transfer(pair.client.value(),
                     request(SLUICE_PULL, pair.client_region, 0, kBytes, handle, 0, i)) == 0);
  CHECK(transfer(pair.client.value(),
                 request(SLUICE_PULL, pair.client_region, 0, kBytes, handle, 0, 16)) == EAGAIN);
  uint64_t seen = 0;
  for (int i = 0; i < 16; ++i) {
    auto end = pair.client_ring.wait();
    REQUIRE(end);
    CHECK(end->status == SLP_SILENT);
    seen |= uint64_t{1} << end->user_data;
  }
  CHECK(seen == 0xffff);
  CHECK_FALSE(pair.client_ring.take());
}

TEST_CASE("memory that was unmapped is written to by nobody who has it afterwards") {
  Pair pair;
  uint32_t handle = 0;
  REQUIRE(open_handle(pair.server.value(), pair.caller, pair.server_region, 0, kBytes,
                      SLUICE_MAY_WRITE, handle) == 0);
  uint8_t* old = pair.server_pages.data();
  pair.server_pages.unmap();
  void* again = ::mmap(old, kBytes + 8192, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  REQUIRE(again == old);
  std::memset(again, 0, kBytes + 8192);
  fill(pair.at_client(), kBytes, 3);
  sluice_transfer push = request(SLUICE_PUSH_NOTICE, pair.client_region, 0, kBytes, handle, 0, 6);
  REQUIRE(transfer(pair.client.value(), push) == 0);
  auto end = pair.client_ring.wait();
  REQUIRE(end);
  CHECK(end->status == SLP_BAD_HANDLE);
  CHECK(std::all_of(old, old + kBytes, [](uint8_t byte) { return byte == 0; }));
  ::munmap(again, kBytes + 8192);
}

TEST_CASE("a ring whose reader lies gets less, and harms nobody") {
  Pair pair;
  uint32_t handle = 0;
  REQUIRE(open_handle(pair.server.value(), pair.caller, pair.server_region, 0, kBytes,
                      SLUICE_MAY_READ | SLUICE_MAY_WRITE, handle) == 0);
  sluice_ring& ring = pair.client_ring.raw();
  for (uint32_t lie : {1u, 100u, 0x80000000u, ~0u}) {
    ring.mask = lie;
    ring.entries_at = lie;
    ring.head = lie;
    ring.tail = lie;
    int error = transfer(pair.client.value(),
                         request(SLUICE_PULL, pair.client_region, 0, 100000, handle, 0, 1));
    CHECK((error == 0 || error == EAGAIN));
  }
  // A peer that gives more notices than there is room for loses its session.
  int error = 0;
  for (int i = 0; i < 200 && error == 0; ++i) {
    sluice_transfer push = request(SLUICE_PUSH_NOTICE, pair.client_region, 0, 1, handle, 0, 1);
    ring.tail = ring.head;
    error = transfer(pair.client.value(), push);
    if (error == EAGAIN) {
      ::poll(nullptr, 0, 1);
      error = 0;
    }
  }
  CHECK(receive(pair.client.value()).result <= 0);
}

TEST_CASE("a peer's notices do not take the entry of a transfer") {
  Module module;
  Wire wire;
  Fd socket = bound_socket(wire.a, 7000), giver = open_socket(wire.b.space);
  Ring ring(socket.value(), 2), other(giver.value(), 8);
  Pages pages(4096), source(4096);
  uint32_t region, handle, from;
  REQUIRE(register_memory(socket.value(), pages.data(), 4096, region) == 0);
  REQUIRE(register_memory(giver.value(), source.data(), 4096, from) == 0);
  int hour_ms = 3'600'000;
  REQUIRE(::setsockopt(socket.value(), SOL_SLUICE, SLUICE_DEAD_MS, &hour_ms, sizeof(hour_ms)) == 0);
  // One who is met, and then does nothing more.
  PacketPeer idle(wire.b, 7001);
  idle.connect(wire.a.mac, 7000);
  for (int i = 0; i < 20000 && !idle.up(); ++i) idle.turn(1);
  REQUIRE(idle.up());
  sluice_transfer pull = request(SLUICE_PULL, region, 0, 100, 1, 0, 5);
  pull.peer = seen_from(wire.a, wire.b, 7001);
  REQUIRE(transfer(socket.value(), pull) == 0);
  REQUIRE(connect_to(giver.value(), seen_from(wire.b, wire.a, 7000)) == 0);
  REQUIRE(send_on(giver.value(), "here I am") == 9);
  Received caller = receive(socket.value());
  REQUIRE(open_handle(socket.value(), caller.from, region, 0, 4096, SLUICE_MAY_WRITE, handle, 77) ==
          0);
  REQUIRE(transfer(giver.value(), request(SLUICE_PUSH_NOTICE, from, 0, 8, handle, 0, 1)) == 0);
  REQUIRE(other.wait()->status == SLP_OK);
  // There is one entry, and it is spoken for: who gives more loses his session.
  REQUIRE(transfer(giver.value(), request(SLUICE_PUSH_NOTICE, from, 0, 8, handle, 0, 2)) == 0);
  REQUIRE(other.wait());
  CHECK(receive(giver.value()).result <= 0);
  REQUIRE(cancel(socket.value(), 5) == 0);
  auto notice = ring.take(), end = ring.take();
  REQUIRE((notice && end));
  CHECK(notice->user_data == 77);
  CHECK(end->user_data == 5);
  CHECK(end->status == SLP_CANCELLED);
}

// ---- the same with a packet socket's end

TEST_CASE(
    "a packet socket's end pulls from and pushes into the module's memory, with and without loss, "
    "and with damage that checksums find") {
  unsigned drop_every = GENERATE(0u, 9u), damage_every = GENERATE(0u, 11u);
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.a, 7000);
  Ring ring(server.value(), 64);
  Pages pages(kBytes);
  uint32_t region, handle;
  REQUIRE(register_memory(server.value(), pages.data(), kBytes, region) == 0);
  PacketPeer peer(wire.b, 7001);
  peer.memory.resize(kBytes);
  peer.drop_every = drop_every;
  peer.checksums = damage_every != 0;
  peer.damage_every = damage_every;
  peer.connect(wire.a.mac, 7000);
  auto run = [&](auto until) {
    for (int i = 0; i < 200000 && !until(); ++i) peer.turn(1);
    return until();
  };
  REQUIRE(run([&] { return peer.up(); }));
  REQUIRE(open_handle(server.value(), seen_from(wire.a, wire.b, 7001), region, 0, kBytes,
                      SLUICE_MAY_READ | SLUICE_MAY_WRITE, handle) == 0);
  fill(pages.data(), kBytes, 8);
  REQUIRE(slp_pull(peer.session(), handle, 0, kBytes, 1) == SLP_OK);
  REQUIRE(run([&] { return peer.ended.size() == 1; }));
  CHECK(peer.ended[0].second == SLP_OK);
  CHECK(holds(peer.memory.data(), kBytes, 8));
  fill(peer.memory.data(), kBytes, 9);
  uint32_t notice = 42;
  REQUIRE(slp_push(peer.session(), handle, 0, kBytes, 2, &notice) == SLP_OK);
  REQUIRE(run([&] { return peer.ended.size() == 2; }));
  CHECK(peer.ended[1].second == SLP_OK);
  CHECK(holds(pages.data(), kBytes, 9));
  auto told = ring.wait();
  REQUIRE(told);
  CHECK(told->notice == 42);
}

TEST_CASE("the module pulls from and pushes into a packet socket's end, with and without loss") {
  unsigned drop_every = GENERATE(0u, 9u);
  Module module;
  Wire wire;
  Fd client = open_socket(wire.a.space, SOCK_NONBLOCK);
  Ring ring(client.value(), 64);
  Pages pages(kBytes);
  uint32_t region, handle;
  REQUIRE(register_memory(client.value(), pages.data(), kBytes, region) == 0);
  PacketPeer peer(wire.b, 7000);
  peer.memory.resize(kBytes);
  peer.listen();
  peer.drop_every = drop_every;
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == EINPROGRESS);
  auto run = [&](auto until) {
    for (int i = 0; i < 200000 && !until(); ++i) peer.turn(1);
    return until();
  };
  REQUIRE(run([&] { return peer.up(); }));
  REQUIRE(slp_open_handle(peer.session(), 0, kBytes, SLP_READ | SLP_WRITE, &handle));
  fill(peer.memory.data(), kBytes, 3);
  std::optional<sluice_completion> end;
  REQUIRE(transfer(client.value(), request(SLUICE_PULL, region, 0, kBytes, handle, 0, 1)) == 0);
  REQUIRE(run([&] { return end || (end = ring.take()); }));
  CHECK(end->status == SLP_OK);
  CHECK(holds(pages.data(), kBytes, 3));
  fill(pages.data(), kBytes, 4);
  sluice_transfer push = request(SLUICE_PUSH_NOTICE, region, 0, kBytes, handle, 0, 2);
  push.notice = 17;
  end.reset();
  REQUIRE(transfer(client.value(), push) == 0);
  REQUIRE(run([&] { return end || (end = ring.take()); }));
  CHECK(end->status == SLP_OK);
  CHECK(holds(peer.memory.data(), kBytes, 4));
  CHECK(peer.notices == std::vector<uint32_t>{17});
}

}  // namespace
}  // namespace sluice::module_test
