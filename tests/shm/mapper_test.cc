// A peer's memory, mapped: what it may pass us, and that a refusal leaves no hole in the
// addresses reserved for its arena, into which memory of ours could come to lie.
#include <sluice/shm/mapper.h>

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <algorithm>
#include <vector>

#include "tests/support/skip.h"

namespace {
bool programs_refused = false;  // as Linux 6.3 to 6.5 does with vm.memfd_noexec=2
}

// In place of libc's, for this test's program.
extern "C" int memfd_create(const char* name, unsigned flags) noexcept {
  constexpr unsigned kNoProgram = 8;  // MFD_NOEXEC_SEAL
  if (programs_refused && (flags & kNoProgram) == 0) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_memfd_create, name, flags));
}

namespace sluice::shm {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kArena = uint64_t{1} << 43;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

enum class Pages : uint8_t { kThere, kHole };

// As a peer passes it.
Descriptor memory(uint64_t length, unsigned flags, int seals, Pages pages = Pages::kThere) {
  Descriptor fd(::memfd_create("sluice-test", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  REQUIRE(fd);
  REQUIRE(::ftruncate(fd.value(), static_cast<off_t>(length)) == 0);
  if (pages == Pages::kThere)
    REQUIRE(::fallocate(fd.value(), 0, 0, static_cast<off_t>(length)) == 0);
  REQUIRE(::fcntl(fd.value(), F_ADD_SEALS, seals) == 0);
  return fd;
}

bool taken(const std::byte* address) {
  void* made = ::mmap(const_cast<std::byte*>(address), 4096, PROT_READ,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (made != MAP_FAILED) ::munmap(made, 4096);
  return made == MAP_FAILED && errno == EEXIST;
}

// An arena of which the first extent is mapped.
struct Announced {
  Announced() {
    REQUIRE(add(1, 0, 2 * kMiB, memory(2 * kMiB, 0, kSeals)).ok());
    const ImportedRun view = see(1, 0, 4096);
    base = const_cast<std::byte*>(view.data);
    view.mapping->drop();
  }
  ~Announced() { arena->drop(); }
  Status add(uint32_t id, uint64_t offset, uint64_t length, const Descriptor& fd) {
    return arena->add_extent(id, offset, length, fd.value());
  }
  ImportedRun see(uint32_t id, uint64_t offset, uint64_t length) const {
    auto view = arena->import_run({.extent = id, .offset = offset, .length = length});
    INFO(view.status().to_string());
    REQUIRE(view.ok());
    return *view;
  }
  bool reserved_at(uint64_t offset) const { return taken(base + offset); }
  PeerArena* arena = new PeerArena(kArena, nullptr, nullptr);
  std::byte* base = nullptr;
};

TEST_CASE("huge pages that there are not are refused, and the addresses stay reserved") {
  Announced announced;
  constexpr uint64_t kTooMuch = kArena / 2;
  // Sparse, and so refused before it is mapped; map_over's own test has the other case.
  Status status = announced.add(2, 4 * kMiB, kTooMuch,
                                memory(kTooMuch, MFD_HUGETLB | MFD_HUGE_2MB, kSeals, Pages::kHole));
  CHECK(status.code() == Code::kCorrupt);
  for (uint64_t offset : {2 * kMiB, 4 * kMiB, 64 * kMiB - 4096})
    CHECK(announced.reserved_at(offset));
  CHECK_FALSE(announced.arena->has_extent(2));
  CHECK(announced.arena->mapped_bytes() == 2 * kMiB);
}

TEST_CASE("a control region is made where all memory must be told to hold no program") {
  programs_refused = true;
  auto own = OwnRegion::create(7);
  programs_refused = false;
  INFO(own.status().to_string());
  REQUIRE(own.ok());
  auto peer = PeerRegion::map((*own)->fd(), 7);
  INFO(peer.status().to_string());
  CHECK(peer.ok());
}

TEST_CASE("memory whose seals may still change is refused") {
  Announced announced;
  Status status = announced.add(2, 4 * kMiB, 2 * kMiB, memory(2 * kMiB, 0, kSeals & ~F_SEAL_SEAL));
  CHECK(status.code() == Code::kCorrupt);
  CHECK(announced.reserved_at(4 * kMiB));
}

TEST_CASE("pages larger than an extent's unit are refused") {
  Descriptor fd(
      ::memfd_create("sluice-test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_1GB));
  if (!fd) return test::skip("hugetlb-1g", "this processor has no pages of 1 GiB");
  Announced announced;
  REQUIRE(::ftruncate(fd.value(), off_t{1} << 30) == 0);
  REQUIRE(::fcntl(fd.value(), F_ADD_SEALS, kSeals) == 0);
  Status status = announced.add(2, 4 * kMiB, 2 * kMiB, fd);
  CHECK(status.code() == Code::kCorrupt);
  CHECK(status.to_string().find("2 MiB") != std::string::npos);
  CHECK(announced.reserved_at(4 * kMiB));
}

// 256 peers on a machine of 1 TiB: each can come to share all of it, and there are 128 TiB of
// addresses.
TEST_CASE("a peer takes addresses for what it announced, not for what it has") {
  constexpr uint64_t kTiB = uint64_t{1} << 40;
  const Descriptor extent = memory(2 * kMiB, 0, kSeals);
  std::vector<PeerArena*> peers;
  for (int i = 0; i < 256; ++i) {
    peers.push_back(new PeerArena(kTiB, nullptr, nullptr));
    INFO(i);
    REQUIRE(peers.back()->add_extent(1, 0, 2 * kMiB, extent.value()).ok());
    CHECK(peers.back()->reserved_bytes() <= 66 * kMiB);
  }
  for (PeerArena* peer : peers) peer->drop();
}

TEST_CASE("extents further on, and before, are contiguous with what was there, and views stay") {
  Announced announced;
  auto number = [](uint64_t i) {
    Descriptor fd = memory(2 * kMiB, 0, F_SEAL_SHRINK | F_SEAL_GROW);
    REQUIRE(::pwrite(fd.value(), &i, sizeof(i), 2 * kMiB - 8) == 8);
    REQUIRE(::pwrite(fd.value(), &i, sizeof(i), 0) == 8);
    REQUIRE(::fcntl(fd.value(), F_ADD_SEALS, kSeals) == 0);
    return fd;
  };
  auto word = [](const std::byte* at) {
    uint64_t value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  };
  // Far off, then downwards from there.
  PeerArena* arena = announced.arena;
  REQUIRE(announced.add(2, 512 * kMiB, 2 * kMiB, number(2)).ok());
  CHECK(arena->reserved_bytes() <= 518 * kMiB);
  const ImportedRun early = announced.see(2, 0, 2 * kMiB);
  REQUIRE(announced.add(3, 2048 * kMiB, 2 * kMiB, number(3)).ok());
  REQUIRE(announced.add(4, 510 * kMiB, 2 * kMiB, number(4)).ok());
  CHECK(arena->reserved_bytes() <= 2054 * kMiB);
  const ImportedRun across = announced.see(4, 0, 4 * kMiB);
  CHECK(word(across.data) == 4);
  CHECK(word(across.data + 2 * kMiB - 8) == 4);
  CHECK(word(across.data + 2 * kMiB) == 2);
  CHECK(word(across.data + 4 * kMiB - 8) == 2);
  // The earlier view lies where it lay, in a range that ends with it.
  CHECK(early.mapping != across.mapping);
  CHECK(word(early.data) == 2);
  CHECK(taken(early.data));
  early.mapping->drop();
  CHECK_FALSE(taken(early.data));
  CHECK(word(across.data) == 4);
  across.mapping->drop();
}

TEST_CASE("many extents are mapped again once at most, whatever their peer announces next") {
  Announced announced;
  const Descriptor extent = memory(2 * kMiB, 0, kSeals);
  PeerArena* arena = announced.arena;
  uint64_t ranges = 1, mapped_again = 0, bytes = arena->reserved_bytes();
  for (uint32_t id = 2; id < 1500; ++id) {
    REQUIRE(announced.add(id, uint64_t{id} * 4 * kMiB, 2 * kMiB, extent).ok());
    if (arena->reserved_bytes() == bytes) continue;
    bytes = arena->reserved_bytes();
    ++ranges;
    mapped_again = std::max<uint64_t>(mapped_again, id - 1);
  }
  CHECK(ranges <= 8);
  CHECK(mapped_again <= 512);
  CHECK(bytes >= kArena);
}

TEST_CASE("views of every range keep the connection's memory, the last one ends it") {
  auto* arena = new PeerArena(kArena, nullptr, nullptr);
  std::vector<ImportedRun> views;
  for (uint32_t id = 1; id <= 8; ++id) {
    const uint64_t offset = (uint64_t{1} << id) * 64 * kMiB;
    REQUIRE(arena->add_extent(id, offset, 2 * kMiB, memory(2 * kMiB, 0, kSeals).value()).ok());
    views.push_back(*arena->import_run({.extent = id, .offset = 0, .length = 2 * kMiB}));
  }
  arena->drop();
  for (const ImportedRun& view : views) {
    CHECK(taken(view.data));
    view.mapping->drop();
    CHECK_FALSE(taken(view.data));
  }
}

// By an account that allows less than what two ranges take: the earlier one stays as it is.
TEST_CASE("a range for which there are no addresses is refused, and what was mapped stays") {
  Announced announced;
  Status status = announced.add(2, kArena / 2, 2 * kMiB, memory(2 * kMiB, 0, kSeals));
  CHECK(status.ok());  // 4 TiB: there are addresses
  PeerArena* far = new PeerArena(uint64_t{1} << 46, nullptr, nullptr);
  REQUIRE(far->add_extent(1, 0, 2 * kMiB, memory(2 * kMiB, 0, kSeals).value()).ok());
  // 2^46 and what this process has are more than half of all addresses; twice that is not there.
  PeerArena* other = new PeerArena(uint64_t{1} << 46, nullptr, nullptr);
  const uint64_t end = (uint64_t{1} << 46) - 2 * kMiB;
  const bool one = far->add_extent(2, end, 2 * kMiB, memory(2 * kMiB, 0, kSeals).value()).ok();
  status = other->add_extent(1, end, 2 * kMiB, memory(2 * kMiB, 0, kSeals).value());
  CHECK(status.ok());  // alone, it needs little
  status = other->add_extent(2, 0, 2 * kMiB, memory(2 * kMiB, 0, kSeals).value());
  CHECK((!one || !status.ok()));
  auto view = other->import_run({.extent = 1, .offset = 0, .length = 2 * kMiB});
  REQUIRE(view.ok());
  CHECK(*view->data == std::byte{0});
  view->mapping->drop();
  far->drop();
  other->drop();
}

}  // namespace
}  // namespace sluice::shm
