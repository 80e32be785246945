// Registered memory whose process changes its map: what it unmaps, replaces or leaves behind is out
// of every peer's reach, and unpinned; what it keeps goes on.
#include <catch2/catch.hpp>
#include <grp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "kernel_compat/slp/slp.h"
#include "tests/module/memory.h"
#include "tests/module/wire.h"
#include "tests/support/skip.h"

namespace sluice::module_test {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kBytes = 256 * kPage;
constexpr size_t kHole = 100 * kPage;  // where something happens
constexpr size_t kHuge = 2 << 20;
constexpr uint64_t kHandleName = 77;

sluice_transfer request(uint32_t kind, uint32_t region, uint64_t length, uint32_t handle,
                        uint64_t user_data) {
  sluice_transfer out{};
  out.kind = kind;
  out.region = region;
  out.length = length;
  out.handle = handle;
  out.user_data = user_data;
  return out;
}

bool all_are(const uint8_t* data, size_t bytes, uint8_t value) {
  return std::all_of(data, data + bytes, [value](uint8_t byte) { return byte == value; });
}

// The verdict comes from a work queue.
bool becomes(const std::function<bool()>& true_now) {
  for (int tries = 0; tries < 20000; ++tries) {
    if (true_now()) return true;
    ::poll(nullptr, 0, 1);
  }
  return false;
}

enum class Kind { kPrivate, kShared, kHuge };

uint8_t* map(Kind kind, size_t bytes, void* at = nullptr) {
  int flags = kind == Kind::kShared ? MAP_SHARED : MAP_PRIVATE;
  void* made = ::mmap(at, bytes, PROT_READ | PROT_WRITE,
                      flags | MAP_ANONYMOUS | (at != nullptr ? MAP_FIXED : 0), -1, 0);
  REQUIRE(made != MAP_FAILED);
  return static_cast<uint8_t*>(made);
}

// A server whose memory a connected client may read and write.
struct Reach {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space);
  sockaddr_sluice caller{};
  Ring server_ring{server.value(), 64}, client_ring{client.value(), 64};
  uint8_t *room, *memory;  // behind which as much is nobody's
  Pages client_pages{kBytes};
  uint32_t server_region = 99, client_region = 99, handle = 0;
  explicit Reach(Kind kind = Kind::kPrivate)
      : room(static_cast<uint8_t*>(
            ::mmap(nullptr, 2 * kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    memory = room + kHuge - reinterpret_cast<uintptr_t>(room) % kHuge;
    map(kind, kind == Kind::kHuge ? kHuge : kBytes, memory);
    if (kind == Kind::kHuge) REQUIRE(::madvise(memory, kHuge, MADV_HUGEPAGE) == 0);
    std::memset(memory, 0, kBytes);
    REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
    REQUIRE(send_on(client.value(), "here I am") == 9);
    caller = receive(server.value()).from;
    REQUIRE(register_memory(server.value(), memory, kBytes, server_region) == 0);
    REQUIRE(register_memory(client.value(), client_pages.data(), kBytes, client_region) == 0);
    REQUIRE(open_handle(server.value(), caller, server_region, 0, kBytes,
                        SLUICE_MAY_READ | SLUICE_MAY_WRITE, handle, kHandleName) == 0);
  }
  ~Reach() { ::munmap(room, 2 * kHuge); }
  uint32_t move(uint32_t kind) {
    if (int error = transfer(client.value(), request(kind, client_region, kBytes, handle, 5)))
      return 1000u + static_cast<uint32_t>(error);
    auto end = client_ring.wait();
    return end ? end->status : 999;
  }
  uint64_t count(const char* name) { return counter(wire.b.space, name); }
  void check_gone() {
    INFO(sockets(wire.b.space));
    auto told = server_ring.wait();
    REQUIRE(told);
    CHECK(told->kind == SLUICE_HANDLE_GONE);
    CHECK(told->status == SLUICE_MEMORY_GONE);
    CHECK(told->user_data == kHandleName);
    CHECK(told->notice == handle);
    uint64_t refused = count("accesses_refused");
    CHECK(move(SLUICE_PUSH) == SLP_BAD_HANDLE);
    CHECK(move(SLUICE_PULL) == SLP_BAD_HANDLE);
    CHECK(count("accesses_refused") == refused + 2);
    CHECK(count("regions_gone") == 1);
    // The owner is told, too.
    uint32_t other = 0;
    CHECK(open_handle(server.value(), caller, server_region, 0, 1, SLUICE_MAY_READ, other) ==
          EFAULT);
    CHECK(becomes([] { return pinned_kib() == kBytes >> 10; }));  // the client's
    CHECK(unregister_memory(server.value(), server_region) == 0);
    CHECK(pinned_kib() == kBytes >> 10);
    // And nothing else has suffered.
    CHECK(send_on(client.value(), "still here") == 10);
    CHECK(receive(server.value()).text == "still here");
  }
  void check_good(uint8_t value) {
    std::memset(client_pages.data(), value, kBytes);
    CHECK(move(SLUICE_PUSH) == SLP_OK);
    CHECK(all_are(memory, kBytes, value));
    CHECK(count("regions_gone") == 0);
    CHECK_FALSE(server_ring.take());
  }
};

struct Change {
  const char* what;
  Kind kind;
  void (*make)(uint8_t* at);
};

TEST_CASE(
    "memory that its process has unmapped, replaced or moved is refused, and what is there now is "
    "untouched") {
  Change change = GENERATE(
      Change{"a page unmapped", Kind::kPrivate, [](uint8_t* at) { ::munmap(at, kPage); }},
      Change{"a shared page unmapped", Kind::kShared, [](uint8_t* at) { ::munmap(at, kPage); }},
      Change{"unmapped, and something else mapped there", Kind::kPrivate,
             [](uint8_t* at) {
               ::munmap(at, kPage);
               map(Kind::kPrivate, kPage, at);
             }},
      Change{"something else mapped over it", Kind::kShared,
             [](uint8_t* at) { map(Kind::kShared, kPage, at); }},
      Change{"moved away", Kind::kPrivate,
             [](uint8_t* at) {
               void* moved = ::mremap(at, kPage, kPage, MREMAP_MAYMOVE | MREMAP_FIXED, at + kBytes);
               REQUIRE(moved == at + kBytes);
             }},
      Change{"given back to the kernel", Kind::kPrivate,
             [](uint8_t* at) { ::madvise(at, kPage, MADV_DONTNEED); }},
      Change{"removed from its file", Kind::kShared, [](uint8_t* at) {
               ::madvise(at, kPage, MADV_REMOVE);
               ::madvise(at, kPage, MADV_DONTNEED);
             }});
  INFO(change.what);
  Reach reach(change.kind);
  uint8_t* behind = map(Kind::kPrivate, kPage, reach.memory + kHole + kBytes);
  std::memset(reach.client_pages.data(), 0xee, kBytes);
  change.make(reach.memory + kHole);
  // Whatever the process has there now, it may write to it at once.
  bool mapped = ::madvise(reach.memory + kHole, kPage, MADV_POPULATE_WRITE) == 0;
  if (mapped) std::memset(reach.memory + kHole, 0x11, kPage);
  reach.check_gone();
  if (mapped) CHECK(all_are(reach.memory + kHole, kPage, 0x11));
  CHECK(all_are(behind, kPage, 0));
}

TEST_CASE("changes that leave the process its pages leave peers their access") {
  struct Harmless {
    const char* what;
    Kind kind;
    bool looked_at;
    void (*make)(Reach& reach);
  };
  Harmless change = GENERATE(
      Harmless{"a child that is forked, writes and ends", Kind::kPrivate, false,
               [](Reach& reach) {
                 pid_t child = ::fork();
                 if (child == 0) {
                   std::memset(reach.memory, 0x77, kBytes);
                   ::_exit(0);
                 }
                 ::waitpid(child, nullptr, 0);
               }},
      Harmless{"read only, for a while", Kind::kPrivate, false,
               [](Reach& reach) {
                 ::mprotect(reach.memory + kHole, kPage, PROT_READ);
                 ::mprotect(reach.memory + kHole, kPage, PROT_READ | PROT_WRITE);
               }},
      Harmless{"a shared page out of the page table, and still the file's", Kind::kShared, true,
               [](Reach& reach) { ::madvise(reach.memory + kHole, kPage, MADV_DONTNEED); }},
      Harmless{"reclaimed in vain", Kind::kShared, true,
               [](Reach& reach) { ::madvise(reach.memory, kBytes, MADV_PAGEOUT); }},
      Harmless{"reclaimed in vain again and again, by another thread", Kind::kShared, true,
               [](Reach& reach) {
                 std::jthread other([&reach] {
                   for (int i = 0; i < 100; ++i) ::madvise(reach.memory, kBytes, MADV_PAGEOUT);
                 });
                 for (uint8_t value = 0; value < 20; ++value) reach.check_good(value);
               }},
      Harmless{"a huge page split", Kind::kHuge, true,
               [](Reach& reach) { ::munmap(reach.memory + kBytes, kPage); }},
      Harmless{"a neighbour unmapped", Kind::kPrivate, false, [](Reach& reach) {
                 map(Kind::kPrivate, kPage, reach.memory + kBytes);
                 ::munmap(reach.memory + kBytes, kPage);
               }});
  INFO(change.what);
  if (change.kind == Kind::kHuge && ::access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0) {
    return test::skip("huge-pages", "this kernel makes no huge pages of small ones");
  }
  Reach reach(change.kind);
  reach.check_good(1);
  change.make(reach);
  reach.check_good(2);
  if (change.looked_at)
    CHECK(reach.count("regions_doubted") > 0);
  else
    CHECK(reach.count("regions_doubted") == 0);
}

// Pinning it for writing takes the zero page away, which the notifier tells of.
TEST_CASE("memory that was only read so far is registered, and what was there stays") {
  Module module;
  Wire wire;
  Fd socket = open_socket(wire.a.space);
  Pages pages(kBytes);
  REQUIRE(all_are(pages.data(), kBytes, 0));
  uint32_t region = 99;
  REQUIRE(register_memory(socket.value(), pages.data(), kBytes, region) == 0);
  CHECK(counter(wire.a.space, "regions_doubted") > 0);
  CHECK(counter(wire.a.space, "regions_gone") == 0);
  CHECK(pinned_kib() == kBytes >> 10);
  CHECK(unregister_memory(socket.value(), region) == 0);
}

TEST_CASE("memory is unmapped under traffic: what ended well was there, the rest is refused") {
  Reach reach;
  constexpr uint64_t kBefore = 12, kAll = 16;
  uint64_t gone = 0, good = 0;
  auto post = [&](uint64_t i) {
    REQUIRE(transfer(reach.client.value(), request(i % 2 ? SLUICE_PULL : SLUICE_PUSH,
                                                   reach.client_region, kBytes, reach.handle, i)) ==
            0);
  };
  for (uint64_t i = 0; i < kBefore; ++i) post(i);
  ::munmap(reach.memory, kBytes);
  uint8_t* again = map(Kind::kPrivate, kBytes, reach.memory);
  std::memset(again, 0x22, kBytes);
  // With one CPU all of the others may have ended by then.
  for (uint64_t i = kBefore; i < kAll; ++i) post(i);
  for (uint64_t i = 0; i < kAll; ++i) {
    auto end = reach.client_ring.wait();
    REQUIRE(end);
    REQUIRE((end->status == SLP_OK || end->status == SLP_BAD_HANDLE));
    ++(end->status == SLP_OK ? good : gone);
  }
  CHECK(gone >= kAll - kBefore);
  CHECK(good + gone == kAll);
  CHECK_FALSE(reach.client_ring.take());
  // What was pulled whole may be acknowledged after the region is gone, and counts as refused here.
  CHECK(reach.count("accesses_refused") >= gone);
  CHECK(reach.count("accesses_refused") <= kAll);
  reach.check_gone();
  CHECK(all_are(again, kBytes, 0x22));
}

// Each hold of the socket's lock ends 16 at most.
TEST_CASE(
    "memory that many handles and transfers use goes in turns, and each of them is told once") {
  constexpr uint32_t kHandles = 60, kSpansAtOnce = 16;
  Reach reach;
  Ring& ring = reach.server_ring;
  std::vector<uint32_t> handles{reach.handle};
  for (uint32_t i = 1; i < kHandles; ++i) {
    handles.push_back(0);
    REQUIRE(open_handle(reach.server.value(), reach.caller, reach.server_region, i, 1,
                        SLUICE_MAY_READ, handles.back(), kHandleName + i) == 0);
  }
  ::munmap(reach.memory + kHole, kPage);
  uint64_t told = 0;
  for (uint32_t i = 0; i < kHandles; ++i) {
    auto gone = ring.wait();
    REQUIRE(gone);
    CHECK(gone->kind == SLUICE_HANDLE_GONE);
    REQUIRE(gone->user_data - kHandleName < kHandles);
    CHECK(gone->notice == handles[gone->user_data - kHandleName]);
    told |= uint64_t{1} << (gone->user_data - kHandleName);
  }
  CHECK(told == (uint64_t{1} << kHandles) - 1);
  CHECK_FALSE(ring.take());
  CHECK(becomes([] { return pinned_kib() == kBytes >> 10; }));  // the client's
  CHECK(reach.count("regions_gone") == 1);
  CHECK(reach.count("span_turns") == (kHandles + kSpansAtOnce - 1) / kSpansAtOnce);
  // And frames are taken again.
  CHECK(reach.move(SLUICE_PUSH) == SLP_BAD_HANDLE);
  CHECK(unregister_memory(reach.server.value(), reach.server_region) == 0);
}

TEST_CASE("one's own transfers end when their memory is unmapped, each once") {
  Reach reach;
  reach.wire.b.space.ip("link set end0 down");
  for (uint64_t i = 0; i < 8; ++i)
    REQUIRE(transfer(reach.client.value(), request(i % 2 ? SLUICE_PULL : SLUICE_PUSH,
                                                   reach.client_region, kBytes, reach.handle, i)) ==
            0);
  reach.client_pages.unmap();
  uint64_t seen = 0;
  for (int i = 0; i < 8; ++i) {
    auto end = reach.client_ring.wait();
    REQUIRE(end);
    CHECK(end->status == SLUICE_MEMORY_GONE);
    seen |= uint64_t{1} << end->user_data;
  }
  CHECK(seen == 0xff);
  CHECK_FALSE(reach.client_ring.take());
  CHECK(transfer(reach.client.value(),
                 request(SLUICE_PUSH, reach.client_region, 1, reach.handle, 9)) == EFAULT);
  CHECK(counter(reach.wire.a.space, "regions_gone") == 1);
  CHECK(becomes([] { return pinned_kib() == kBytes >> 10; }));  // the server's
}

TEST_CASE("what was unmapped counts against the limit no more") {
  Module module;
  Wire wire;
  pid_t child = ::fork();
  if (child == 0) {
    Fd socket = open_socket(wire.a.space);
    rlimit limit{.rlim_cur = 128 << 10, .rlim_max = 128 << 10};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || ::setgroups(0, nullptr) != 0 ||
        ::setresuid(65534, 65534, 65534) != 0)
      ::_exit(1);
    for (uint32_t round = 0; round < 20; ++round) {
      Pages pages(100 << 10);
      uint32_t region = 0;
      if (register_memory(socket.value(), pages.data(), 100 << 10, region) != 0 ||
          region != round || pinned_kib() != 100)
        ::_exit(2);
      pages.unmap();
      if (!becomes([] { return pinned_kib() == 0; })) ::_exit(3);
    }
    for (uint32_t round = 0; round < 20; ++round)
      if (unregister_memory(socket.value(), round) != 0) ::_exit(4);
    ::_exit(pinned_kib() == 0 ? 0 : 5);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 0);
}

// The socket lives on in another process, and with it what peers were allowed.
TEST_CASE("memory of a process that has ended is refused, although its socket goes on") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  REQUIRE(send_on(client.value(), "here I am") == 9);
  sockaddr_sluice caller = receive(server.value()).from;
  int told[2];
  REQUIRE(::pipe(told) == 0);
  pid_t owner = ::fork();
  if (owner == 0) {
    Pages pages(kBytes);
    uint32_t region = 0, handle = 0;
    if (register_memory(server.value(), pages.data(), kBytes, region) != 0) ::_exit(1);
    if (open_handle(server.value(), caller, region, 0, kBytes, SLUICE_MAY_WRITE, handle) != 0)
      ::_exit(2);
    if (::write(told[1], &handle, sizeof(handle)) != sizeof(handle)) ::_exit(3);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(owner, &status, 0);
  REQUIRE(WEXITSTATUS(status) == 0);
  uint32_t handle = 0, region = 0;
  REQUIRE(::read(told[0], &handle, sizeof(handle)) == sizeof(handle));
  Ring ring(client.value(), 64);
  Pages pages(kBytes);
  REQUIRE(register_memory(client.value(), pages.data(), kBytes, region) == 0);
  REQUIRE(transfer(client.value(), request(SLUICE_PUSH, region, kBytes, handle, 1)) == 0);
  auto end = ring.wait();
  REQUIRE(end);
  CHECK(end->status == SLP_BAD_HANDLE);
  CHECK(counter(wire.b.space, "regions_gone") == 1);
  for (int fd : told) ::close(fd);
}

}  // namespace
}  // namespace sluice::module_test
