// The real page source: memfds, huge pages where they are to be had, seals.
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include <sluice/allocator/page_source.h>
#include <sluice/base/counters.h>
#include <sluice/base/log.h>
#include <sluice/base/map_over.h>

#include "allocator/machine_memory.h"

namespace sluice {
namespace {

constexpr const char* kOrigin = "allocator/page_source";
constexpr size_t kHugePage = 2u << 20;
#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;  // Linux 5.14
#endif
#ifndef MFD_NOEXEC_SEAL
constexpr unsigned MFD_NOEXEC_SEAL = 8;  // Linux 6.3
#endif
// Left to the rest of the machine: an extent that would take the last bytes is refused
// here, because the kernel would answer with the OOM killer, not with an error.
constexpr size_t kLeftToSystem = size_t{64} << 20;

Counter hugetlb_fallback("allocator.hugetlb_fallback");
Counter refused_system("allocator.refused_system");

Status no_memory(int error, const std::string& why) {
  return Status(Code::kNoMemory, Scope::kOperation, kOrigin, why, error);
}

// True if the kernel gave the mapping that starts at `base` huge pages: advice may be
// turned off, and memory too scattered.
bool mapped_huge(const std::byte* base) {
  std::FILE* file = std::fopen("/proc/self/smaps", "re");
  if (file == nullptr) return false;
  char line[512];
  bool ours = false, huge = false;
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    unsigned long start = 0, end = 0, kilobytes = 0;
    if (std::sscanf(line, "%lx-%lx ", &start, &end) == 2) {
      if (ours) break;
      ours = start == reinterpret_cast<unsigned long>(base);
    } else if (ours && std::sscanf(line, "ShmemPmdMapped: %lu", &kilobytes) == 1) {
      huge = kilobytes > 0;
      break;
    }
  }
  std::fclose(file);
  return huge;
}

int create_memfd(unsigned flags) {
  flags |= MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = ::memfd_create("sluice-arena", flags | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create("sluice-arena", flags);
  return fd;
}

// Every page present and writable, or an errno; never SIGBUS.
int populate(int fd, std::byte* base, size_t length) {
  if (::madvise(base, length, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  if (::fallocate(fd, 0, 0, static_cast<off_t>(length)) != 0) return errno;
  // All of the file is placed: touching is safe.
  for (size_t at = 0; at < length; at += 4096) reinterpret_cast<volatile char*>(base)[at] = 0;
  return 0;
}

class LinuxPageSource final : public PageSource {
 public:
  Result<std::byte*> reserve(size_t length) override {
    // A huge page needs an address at a multiple of its size.
    size_t padded = length + kHugePage;
    void* address =
        ::mmap(nullptr, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
      return no_memory(errno, "no address space for an arena of " + std::to_string(length >> 20) +
                                  " MiB; lower its limit or raise ulimit -v");
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
    // First, because these come from a pool of their own.
    Result<PageRun> huge = commit_from(base, length, MFD_HUGETLB | MFD_HUGE_2MB);
    if (huge.ok()) return huge;
    hugetlb_fallback.add();
    size_t available = available_memory_bytes();
    if (length > available - std::min(available, kLeftToSystem)) {
      refused_system.add();
      return no_memory(ENOMEM, "an extent of " + mebibytes(length) + " is more than the " +
                                   mebibytes(available) +
                                   " that are free (MemAvailable, memory.max); free memory, raise "
                                   "the cgroup's memory.max, or lower "
                                   "ArenaOptions::limit_bytes");
    }
    Result<PageRun> run = commit_from(base, length, 0);
    if (!run.ok()) refused_system.add();
    return run;
  }

  void decommit(const PageRun& run) noexcept override {
    give_up(run.base, run.length);
    ::close(run.fd);
  }

 private:
  // The addresses stay ours, without memory.
  static void give_up(std::byte* base, size_t length) noexcept {
    void* place = ::mmap(base, length, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (place == MAP_FAILED)
      log(LogLevel::kError, "the addresses of an extent could not be reserved again");
  }

  static Result<PageRun> commit_from(std::byte* base, size_t length, unsigned flags) {
    int fd = create_memfd(flags);
    if (fd < 0)
      return no_memory(errno,
                       "no descriptor for an extent; raise `ulimit -n`, or `sysctl fs.file-max` if "
                       "that is the limit");
    Status status = place(fd, base, length);
    if (status.ok()) {
      status = fill(fd, base, length, flags);
      if (!status.ok()) give_up(base, length);
    }
    if (!status.ok()) {
      ::close(fd);
      return status;
    }
    PageKind kind = flags != 0          ? PageKind::kHugetlb
                    : mapped_huge(base) ? PageKind::kTransparentHuge
                                        : PageKind::kPlain;
    return PageRun{.base = base, .length = length, .fd = fd, .pages = kind};
  }

  static Status place(int fd, std::byte* base, size_t length) {
    std::string size = mebibytes(length);
    if (::ftruncate(fd, static_cast<off_t>(length)) != 0)
      return no_memory(errno, "an extent of " + size + " is refused; see `ulimit -f`");
    // MFD_HUGETLB without enough free pages fails here, not at creation: MAP_SHARED
    // takes the pages out of the pool.
    if (int error = map_over(base, length, PROT_READ | PROT_WRITE, fd); error != 0) {
      return no_memory(error,
                       "an extent of " + size +
                           " cannot be mapped; see `sysctl vm.max_map_count` and `ulimit -v`");
    }
    return Status();
  }

  static Status fill(int fd, std::byte* base, size_t length, unsigned flags) {
    if (::madvise(base, length, MADV_DONTFORK) != 0)
      return no_memory(errno, "an extent cannot be kept from children");
    // Advice only: without it the pages are small ones.
    if (flags == 0) static_cast<void>(::madvise(base, length, MADV_HUGEPAGE));
    // Pages now, zeroed by the kernel: a sparse file would mean SIGBUS when memory is
    // short, and a fault on every first touch. Through the mapping, as fallocate() does
    // not see its advice.
    if (int error = populate(fd, base, length); error != 0) {
      return no_memory(error, "no memory for an extent of " + mebibytes(length) +
                                  "; free some, or lower ArenaOptions::limit_bytes");
    }
    // After our own mapping: we write on, nobody else can map it writable, shrink it or
    // punch holes into it.
    if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) !=
        0) {
      return no_memory(errno, "an extent cannot be sealed (Linux before 5.1?)");
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
