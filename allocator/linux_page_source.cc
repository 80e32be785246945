// The real page source: memfds, huge pages where they are to be had, seals.
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include <sluice/allocator/page_source.h>
#include <sluice/base/counters.h>

namespace sluice {
namespace {

constexpr const char* kOrigin = "allocator/page_source";
constexpr size_t kHugePage = 2u << 20;
#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;  // Linux 5.14
#endif

Counter hugetlb_fallback("allocator.hugetlb_fallback");

Status no_memory(const std::string& why) { return Status(Code::kNoMemory, Scope::kOperation, kOrigin, why, errno); }

// Whether shared memory gets transparent huge pages when advised to.
bool shmem_huge_pages() {
  static const bool enabled = [] {
    std::FILE* file = std::fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "re");
    if (file == nullptr) return false;
    char text[128] = {};
    size_t n = std::fread(text, 1, sizeof(text) - 1, file);
    std::fclose(file);
    std::string line(text, n);
    return line.find("[advise]") != std::string::npos || line.find("[always]") != std::string::npos ||
           line.find("[within_size]") != std::string::npos || line.find("[force]") != std::string::npos;
  }();
  return enabled;
}

class LinuxPageSource final : public PageSource {
 public:
  Result<std::byte*> reserve(size_t length) override {
    // A huge page needs an address at a multiple of its size.
    size_t padded = length + kHugePage;
    void* address = ::mmap(nullptr, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
      return no_memory("no address space for an arena of " + std::to_string(length >> 20) + " MiB; lower its limit or raise ulimit -v");
    }
    auto start = reinterpret_cast<uintptr_t>(address);
    uintptr_t aligned = (start + kHugePage - 1) & ~uintptr_t{kHugePage - 1};
    if (aligned > start) ::munmap(address, aligned - start);
    size_t tail = start + padded - (aligned + length);
    if (tail > 0) ::munmap(reinterpret_cast<void*>(aligned + length), tail);
    return reinterpret_cast<std::byte*>(aligned);
  }

  void unreserve(std::byte* base, size_t length) noexcept override { ::munmap(base, length); }

  Result<PageRun> commit(std::byte* base, size_t length) override {
    Result<PageRun> huge = commit_from(base, length, MFD_HUGETLB);
    if (huge.ok()) return huge;
    hugetlb_fallback.add();
    return commit_from(base, length, 0);
  }

  void decommit(const PageRun& run) noexcept override {
    give_up(run.base, run.length);
    ::close(run.fd);
  }

 private:
  // The addresses stay ours, without memory.
  static void give_up(std::byte* base, size_t length) noexcept {
    ::mmap(base, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }

  static Result<PageRun> commit_from(std::byte* base, size_t length, unsigned flags) {
    int fd = ::memfd_create("sluice-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (fd < 0) return no_memory("no descriptor for an extent; raise ulimit -n");
    Status status = fill(fd, base, length, flags);
    if (!status.ok()) {
      give_up(base, length);
      ::close(fd);
      return status;
    }
    PageKind kind = flags != 0 ? PageKind::kHugetlb : shmem_huge_pages() ? PageKind::kTransparentHuge : PageKind::kPlain;
    return PageRun{.base = base, .length = length, .fd = fd, .pages = kind};
  }

  static Status fill(int fd, std::byte* base, size_t length, unsigned flags) {
    std::string size = std::to_string(length >> 20) + " MiB";
    if (::ftruncate(fd, static_cast<off_t>(length)) != 0) return no_memory("an extent of " + size + " is refused");
    // MFD_HUGETLB without enough free pages fails here, at mmap or at populate, not at
    // creation. MAP_SHARED reserves hugetlb pages: no SIGBUS afterwards.
    void* address = ::mmap(base, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (address == MAP_FAILED) return no_memory("an extent of " + size + " cannot be mapped; see vm.max_map_count and ulimit -v");
    ::madvise(base, length, MADV_DONTFORK);
    if (flags == 0) ::madvise(base, length, MADV_HUGEPAGE);
    // Pages now, zeroed by the kernel: a sparse file would mean SIGBUS when memory is
    // short, and a fault on every first touch.
    if (::madvise(base, length, MADV_POPULATE_WRITE) != 0) {
      if (errno != EINVAL || ::fallocate(fd, 0, 0, static_cast<off_t>(length)) != 0) {
        return no_memory("no memory for an extent of " + size + "; free some, or lower ArenaOptions::limit_bytes");
      }
    }
    // After our own mapping: we write on, nobody else can map it writable, shrink it or
    // punch holes into it.
    if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
      return no_memory("an extent cannot be sealed");
    }
    return Status();
  }
};

}  // namespace

std::string_view to_string(PageKind kind) {
  switch (kind) {
    case PageKind::kPlain: return "plain pages";
    case PageKind::kTransparentHuge: return "transparent huge pages";
    case PageKind::kHugetlb: return "hugetlb pages";
  }
  return "page kind out of range";
}

PageSource& system_page_source() {
  static LinuxPageSource* source = new LinuxPageSource();  // outlives every arena
  return *source;
}

}  // namespace sluice
