// A peer's memory, mapped: what it may pass us, and that a refusal leaves no hole in the
// addresses reserved for its arena, into which memory of ours could come to lie.
#include <sluice/shm/mapper.h>

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "tests/support/skip.h"

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

// An arena of which the first extent is mapped.
struct Announced {
  Announced() {
    REQUIRE(add(1, 0, 2 * kMiB, memory(2 * kMiB, 0, kSeals)).ok());
    base = const_cast<std::byte*>(
        arena->import_run({.extent = 1, .offset = 0, .length = 4096}).value().data);
    arena->drop();  // the view's reference
  }
  ~Announced() { arena->drop(); }
  Status add(uint32_t id, uint64_t offset, uint64_t length, const Descriptor& fd) {
    return arena->add_extent(id, offset, length, fd.value());
  }
  bool reserved_at(uint64_t offset) const {
    void* made = ::mmap(base + offset, 4096, PROT_READ,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (made != MAP_FAILED) ::munmap(made, 4096);
    return made == MAP_FAILED && errno == EEXIST;
  }
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
  for (uint64_t offset : {2 * kMiB, 4 * kMiB, kTooMuch, kTooMuch + 4 * kMiB - 4096})
    CHECK(announced.reserved_at(offset));
  CHECK_FALSE(announced.arena->has_extent(2));
  CHECK(announced.arena->mapped_bytes() == 2 * kMiB);
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

}  // namespace
}  // namespace sluice::shm
