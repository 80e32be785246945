// The real page source: what the owner may do with an extent, and what a peer may not.
#include <sluice/allocator/page_source.h>

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <sluice/allocator/arena.h>
#include <sluice/base/counters.h>

namespace sluice {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

size_t open_descriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    count += !entry.path().empty();
  return count;
}

// Of the mapping that starts at `base`, by /proc/self/smaps.
unsigned long huge_kilobytes(const std::byte* base) {
  std::ifstream file("/proc/self/smaps");
  bool ours = false;
  unsigned long start = 0, end = 0, kilobytes = 0;
  for (std::string line; std::getline(file, line);) {
    if (std::sscanf(line.c_str(), "%lx-%lx ", &start, &end) == 2)
      ours = start == reinterpret_cast<unsigned long>(base);
    if (ours && std::sscanf(line.c_str(), "ShmemPmdMapped: %lu", &kilobytes) == 1) break;
  }
  return kilobytes;
}

struct Extent {
  explicit Extent(size_t length) : reserved(length + 2 * kMiB) {
    base = std::move(system_page_source().reserve(reserved)).value();
    run = std::move(system_page_source().commit(base, length)).value();
  }
  ~Extent() {
    system_page_source().decommit(run);
    system_page_source().unreserve(base, reserved);
  }
  size_t reserved;
  std::byte* base;
  PageRun run;
};

TEST_CASE("an extent is zeroed, present, close-on-exec and fully allocated") {
  Extent extent(4 * kMiB);
  CHECK(reinterpret_cast<uintptr_t>(extent.base) % (2 * kMiB) == 0);
  CHECK(extent.run.base == extent.base);
  CHECK(extent.run.length == 4 * kMiB);
  CHECK((::fcntl(extent.run.fd, F_GETFD) & FD_CLOEXEC) != 0);
  struct stat status;
  REQUIRE(::fstat(extent.run.fd, &status) == 0);
  CHECK(static_cast<size_t>(status.st_blocks) * 512 >= 4 * kMiB);
  for (size_t at = 0; at < 4 * kMiB; at += 512) REQUIRE(extent.base[at] == std::byte{0});
  CHECK_FALSE(to_string(extent.run.pages).empty());
}

TEST_CASE("a peer may read an extent and nothing else") {
  Extent extent(2 * kMiB);
  REQUIRE(system_page_source().seal(extent.run).ok());
  CHECK(system_page_source().seal(extent.run).ok());  // as another thread may
  int fd = extent.run.fd;
  extent.base[100] = std::byte{7};
  void* view = ::mmap(nullptr, 2 * kMiB, PROT_READ, MAP_SHARED, fd, 0);
  REQUIRE(view != MAP_FAILED);
  CHECK(static_cast<std::byte*>(view)[100] == std::byte{7});
  extent.base[100] = std::byte{8};  // the owner still writes, and the peer sees it
  CHECK(static_cast<std::byte*>(view)[100] == std::byte{8});

  CHECK(::mprotect(view, 2 * kMiB, PROT_READ | PROT_WRITE) == -1);
  CHECK(::mmap(nullptr, 2 * kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  CHECK(errno == EPERM);
  CHECK(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == -1);
  CHECK(errno == EPERM);
  CHECK(::ftruncate(fd, 0) == -1);
  CHECK(::ftruncate(fd, 4 * kMiB) == -1);
  CHECK(::pwrite(fd, "x", 1, 100) == -1);
  CHECK(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == -1);
  CHECK(::madvise(view, 2 * kMiB, MADV_REMOVE) == -1);
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  CHECK((::fcntl(fd, F_GET_SEALS) & kSeals) == kSeals);
  CHECK(extent.base[100] == std::byte{8});
  ::munmap(view, 2 * kMiB);
}

// Bytes of pages that the file of an arena's first extent has.
size_t pages_of(int fd) {
  struct stat status {};
  REQUIRE(::fstat(fd, &status) == 0);
  return static_cast<size_t>(status.st_blocks) * 512;
}

TEST_CASE("an extent goes back slice by slice, unless a peer may have it") {
  for (bool sealed : {false, true}) {
    INFO(sealed);
    auto arena = std::move(Arena::create({.limit_bytes = 128 * kMiB})).value();
    Result<Buffer> buffer = arena->allocate(48 * kMiB);
    REQUIRE(buffer.ok());
    const ExtentInfo extent = arena->locate(buffer->data(), buffer->size_bytes())->first;
    if (sealed) REQUIRE(arena->seal(extent).ok());
    CHECK(((::fcntl(extent.fd, F_GET_SEALS) & F_SEAL_FUTURE_WRITE) != 0) == sealed);
    const int fd = ::dup(extent.fd);  // its pages can be counted to the end
    REQUIRE(fd >= 0);
    *buffer = Buffer();
    REQUIRE(arena->start_trim() == extent.length);
    size_t left = pages_of(fd);
    CHECK(left == extent.length);
    while (arena->freeing_bytes() > 0) {
      REQUIRE(arena->free_some(4 * kMiB) == 4 * kMiB);
      const size_t now = pages_of(fd);
      CHECK(left - now == (sealed ? 0 : 4 * kMiB));
      left = now;
    }
    ::close(fd);
  }
}

TEST_CASE("memory goes back in whole huge pages, whatever is asked for") {
  auto arena = std::move(Arena::create({.limit_bytes = 64 * kMiB})).value();
  REQUIRE(arena->allocate(1000).ok());
  REQUIRE(arena->start_trim() == 8 * kMiB);
  CHECK(arena->free_some(0) == 0);
  CHECK(arena->free_some(1) == 2 * kMiB);
  CHECK(arena->free_some(3 * kMiB) == 4 * kMiB);
  CHECK(arena->free_some(SIZE_MAX) == 2 * kMiB);
  CHECK(arena->freeing_bytes() == 0);
}

TEST_CASE("addresses given back stay reserved and can be used again") {
  size_t before = open_descriptors();
  PageSource& pages = system_page_source();
  std::byte* base = std::move(pages.reserve(8 * kMiB)).value();
  PageRun first = std::move(pages.commit(base, 2 * kMiB)).value();
  base[0] = std::byte{1};
  pages.decommit(first);
  CHECK(open_descriptors() == before);
  // Still ours: a mapping that must not replace another is refused there.
  CHECK(::mmap(base, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) ==
        MAP_FAILED);
  PageRun second = std::move(pages.commit(base, 4 * kMiB)).value();
  CHECK(base[0] == std::byte{0});
  pages.decommit(second);
  pages.unreserve(base, 8 * kMiB);
  CHECK(open_descriptors() == before);
}

TEST_CASE("a refused extent names the limit and leaves nothing behind") {
  PageSource& pages = system_page_source();
  std::byte* base = std::move(pages.reserve(4 * kMiB)).value();
  size_t before = open_descriptors();
  rlimit old_limit;
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &old_limit) == 0);
  rlimit none = {.rlim_cur = 0, .rlim_max = old_limit.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  Result<PageRun> run = pages.commit(base, 2 * kMiB);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &old_limit) == 0);
  CHECK(run.code() == Code::kNoMemory);
  CHECK(run.status().os_error() == EMFILE);
  CHECK(run.status().to_string().find("ulimit -n") != std::string::npos);
  CHECK(open_descriptors() == before);
  Result<PageRun> again = pages.commit(base, 2 * kMiB);
  REQUIRE(again.ok());
  pages.decommit(*again);
  pages.unreserve(base, 4 * kMiB);
}

TEST_CASE("an extent beyond the limit of files is refused, and a smaller one serves instead") {
  rlimit old_limit;
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old_limit) == 0);
  const rlimit small = {.rlim_cur = 12 * kMiB, .rlim_max = old_limit.rlim_max};
  PageSource& pages = system_page_source();
  std::byte* base = std::move(pages.reserve(16 * kMiB)).value();
  size_t before = open_descriptors();
  // What the limit does not allow ends the process by SIGXFSZ.
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  Result<PageRun> run = pages.commit(base, 16 * kMiB);
  // Its second extent would have 16 MiB.
  auto arena = std::move(Arena::create({.limit_bytes = 256 * kMiB})).value();
  Result<Buffer> first = arena->allocate(4 * kMiB);
  Result<Buffer> second = arena->allocate(6 * kMiB);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &old_limit) == 0);
  CHECK(run.code() == Code::kNoMemory);
  CHECK(run.status().to_string().find("; raise `ulimit -f`") != std::string::npos);
  pages.unreserve(base, 16 * kMiB);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  *first = Buffer();
  *second = Buffer();
  arena.reset();
  CHECK(open_descriptors() == before);
}

// An extent is tried with huge pages first. Whatever that leads to, what another thread
// maps meanwhile must not come to lie in the reservation: the extent would replace it.
TEST_CASE("other threads' memory never comes to lie in a reservation") {
  constexpr size_t kExtent = 16 * kMiB,
                   kOthers = 12 * kMiB;  // larger than the gaps above the reservation
  PageSource& pages = system_page_source();
  std::byte* base = std::move(pages.reserve(kExtent)).value();
  std::atomic<bool> over{false};
  std::atomic<int> inside{0}, maps{0};
  std::thread mapping([&] {
    while (!over.load(std::memory_order_relaxed)) {
      void* mine =
          ::mmap(nullptr, kOthers, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      auto* at = static_cast<std::byte*>(mine);
      inside += at + kOthers > base && at < base + kExtent;
      ++maps;
      ::munmap(mine, kOthers);
    }
  });
  for (int round = 0; round < 100 || maps < 1000; ++round)
    pages.decommit(std::move(pages.commit(base, kExtent)).value());
  over = true;
  mapping.join();
  CHECK(inside == 0);
  pages.unreserve(base, kExtent);
}

TEST_CASE("more memory than the machine has is refused, not left to the OOM killer") {
  PageSource& pages = system_page_source();
  constexpr size_t kTooMuch = size_t{1} << 45;
  Result<std::byte*> base = pages.reserve(kTooMuch);
  REQUIRE(base.ok());
  uint64_t refused = read_counter("allocator.refused_system");
  Result<PageRun> run = pages.commit(*base, kTooMuch);
  CHECK(run.code() == Code::kNoMemory);
  CHECK(read_counter("allocator.refused_system") == refused + 1);
  pages.unreserve(*base, kTooMuch);
}

TEST_CASE("a kernel that refuses huge pages gives small ones, and that is counted") {
  PageSource& pages = system_page_source();
  std::byte* base = std::move(pages.reserve(8 * kMiB)).value();
  REQUIRE(::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);
  const uint64_t refused = read_counter("allocator.collapse_fallback");
  PageRun run = std::move(pages.begin_commit(base, 8 * kMiB)).value();
  for (size_t at = 0; at < 8 * kMiB; at += 2 * kMiB)
    REQUIRE(pages.populate(run, at, 2 * kMiB).value() == at + 2 * kMiB);
  REQUIRE(pages.end_commit(run).ok());
  REQUIRE(::prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0) == 0);
  if (run.pages != PageKind::kHugetlb) {  // those come from a pool of their own
    CHECK(run.pages == PageKind::kPlain);
    CHECK(read_counter("allocator.collapse_fallback") == refused + 1);  // once in a run
  }
  for (size_t at = 0; at < 8 * kMiB; at += 512) REQUIRE(base[at] == std::byte{0});
  pages.begin_decommit(run, 0, 2 * kMiB);
  pages.decommit(run);
  pages.unreserve(base, 8 * kMiB);
}

TEST_CASE("an extent has huge pages wherever the kernel collapses small ones") {
  // What the kernel says of a mapping of our own.
  int fd = ::memfd_create("page_source_test", MFD_CLOEXEC);
  REQUIRE(::ftruncate(fd, 2 * kMiB) == 0);
  std::byte* base = std::move(system_page_source().reserve(2 * kMiB)).value();
  REQUIRE(::mmap(base, 2 * kMiB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == base);
  base[0] = std::byte{1};
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, Linux 6.1
  const bool collapses = ::madvise(base, 2 * kMiB, kCollapse) == 0;
  system_page_source().unreserve(base, 2 * kMiB);
  ::close(fd);
  Extent extent(4 * kMiB);
  INFO("the kernel collapses: " << collapses);
  if (collapses) CHECK(extent.run.pages != PageKind::kPlain);
  if (extent.run.pages == PageKind::kTransparentHuge)
    CHECK(huge_kilobytes(extent.base) == 4096);  // by the kernel's own account
  for (size_t at = 0; at < 4 * kMiB; at += 512) REQUIRE(extent.base[at] == std::byte{0});
}

}  // namespace
}  // namespace sluice
