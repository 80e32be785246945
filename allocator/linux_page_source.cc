// The real page source: memfds, huge pages where they are to be had, seals.
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string>
#include <utility>

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
#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;  // Linux 6.1
#endif
#ifndef MFD_NOEXEC_SEAL
constexpr unsigned MFD_NOEXEC_SEAL = 8;  // Linux 6.3
#endif
// Left to the rest of the machine: an extent that would take the last bytes is refused
// here, because the kernel would answer with the OOM killer, not with an error.
constexpr size_t kLeftToSystem = size_t{64} << 20;
// So many bytes of pages come between two looks at what is left, each of which takes about 0.1 ms:
// other allocations in steps, and other processes, may have taken the same memory meanwhile.
constexpr size_t kBetweenLooks = size_t{64} << 20;
// Left at such a look: page tables have had a little since the first.
constexpr size_t kLeftOnTheWay = kLeftToSystem / 2;

Counter hugetlb_fallback("allocator.hugetlb_fallback");
Counter collapse_fallback("allocator.collapse_fallback");
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

// Every page of [base + offset, + length) present and writable, or an errno; never SIGBUS.
int populate_plain(const PageRun& run, size_t offset, size_t length) {
  std::byte* base = run.base + offset;
  if (::madvise(base, length, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  if (::fallocate(run.fd, 0, static_cast<off_t>(offset), static_cast<off_t>(length)) != 0)
    return errno;
  // All of the range is placed: touching is safe.
  for (size_t at = 0; at < length; at += 4096) reinterpret_cast<volatile char*>(base)[at] = 0;
  return 0;
}

// One huge page at an address that has none. The kernel collapses what has at least one page, and
// zeroes the rest at once: half the time of 512 small pages, a fifteenth of collapsing them
// (docs/performance.md, "Pages"). It works whatever shmem_enabled says, except "deny".
// Returns 0, or the errno with which the kernel refused the huge page.
int collapse(std::byte* base) {
  if (::madvise(base, 4096, MADV_POPULATE_WRITE) != 0) return errno;
  return ::madvise(base, kHugePage, MADV_COLLAPSE) == 0 ? 0 : errno;
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
    SLUICE_TRY(PageRun run, begin_commit(base, length));
    Status status;
    for (size_t done = 0; done < length && status.ok();) {
      // What is left was looked at just now.
      Result<size_t> reached =
          done == 0 ? provide_pages(run, done, kHugePage) : populate(run, done, kHugePage);
      status = reached.status();
      if (!status.ok()) break;
      if (*reached > done) {
        done = *reached;
        continue;
      }
      // In one piece, so that all of it is of small pages.
      decommit(std::exchange(run, PageRun{.base = base, .length = length}));
      SLUICE_TRY(run, begin_small(base, length));
      done = 0;
    }
    if (status.ok()) return run;
    decommit(run);
    return status;
  }

  Result<PageRun> begin_commit(std::byte* base, size_t length) override {
    // First, because these come from a pool of their own.
    Result<PageRun> huge = map_file(base, length, MFD_HUGETLB | MFD_HUGE_2MB);
    if (huge.ok()) return huge;
    return begin_small(base, length);
  }

  Result<size_t> populate(PageRun& run, size_t offset, size_t length) override {
    if (run.pages != PageKind::kHugetlb && offset % kBetweenLooks == 0) {
      const size_t next = std::min(kBetweenLooks, run.length - offset);
      SLUICE_RETURN_IF_ERROR(
          check_room(next, kLeftOnTheWay, "a further " + mebibytes(next) + " of an extent"));
    }
    return provide_pages(run, offset, length);
  }

  Result<PageRun> go_on_small(PageRun& run, size_t offset) override {
    SLUICE_TRY(PageRun rest, begin_small(run.base + offset, run.length - offset));
    if (offset == 0) {
      ::close(std::exchange(run.fd, -1));
    } else {
      // What is mapped of it stays; the file must not say more than that.
      [[maybe_unused]] const int cut = ::ftruncate(run.fd, static_cast<off_t>(offset));
    }
    run.length = offset;
    return rest;
  }

  // Not before a peer needs it: the seals would also keep us from freeing it in pieces.
  Status seal(const PageRun& run) override {
    constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
    // We write on; nobody else can map it writable, shrink it or punch holes into it.
    if (::fcntl(run.fd, F_ADD_SEALS, kSeals) == 0) return Status();
    const int error = errno;
    if (const int seals = ::fcntl(run.fd, F_GET_SEALS); seals >= 0 && (seals & kSeals) == kSeals)
      return Status();  // another thread was first
    return no_memory(error, "an extent cannot be sealed (Linux before 5.1?); upgrade the kernel");
  }

  void begin_decommit(const PageRun& run, size_t offset, size_t length) noexcept override {
    give_up(run.base + offset, length);
    if (run.sealed) return;
    // If that is refused, the last close frees it.
    [[maybe_unused]] const int punched =
        ::fallocate(run.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                    static_cast<off_t>(length));
  }

  void decommit(const PageRun& run) noexcept override {
    give_up(run.base, run.length);
    if (run.fd >= 0) ::close(run.fd);
  }

 private:
  // The addresses stay ours, without memory.
  static void give_up(std::byte* base, size_t length) noexcept {
    void* place = ::mmap(base, length, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (place == MAP_FAILED)
      log(LogLevel::kError, "the addresses of an extent could not be reserved again");
  }

  // Errors: kNoMemory, if `length` more bytes would leave less than `left`.
  static Status check_room(size_t length, size_t left, const std::string& what) {
    const size_t available = available_memory_bytes();
    if (length <= available - std::min(available, left)) return Status();
    refused_system.add();
    return no_memory(ENOMEM,
                     what + " is more than the " + mebibytes(available) +
                         " that are free (MemAvailable, memory.max); free memory, raise the "
                         "cgroup's memory.max, or lower ArenaOptions::limit_bytes");
  }

  // Pages now, zeroed by the kernel: a sparse file would mean SIGBUS when memory is short, and a
  // fault on every first touch. Through the mapping, as fallocate() does not see its advice.
  static Result<size_t> provide_pages(PageRun& run, size_t offset, size_t length) {
    if (run.pages == PageKind::kHugetlb) {
      // A cgroup's limit of huge pages is looked at only now, and on which nodes they lie.
      return populate_plain(run, offset, length) == 0 ? offset + length : offset;
    }
    int refused = 0;
    for (size_t at = offset; at < offset + length && refused == 0 && run.collapses; at += kHugePage)
      refused = collapse(run.base + at);
    if (int error = populate_plain(run, offset, length); error != 0) {
      refused_system.add();
      return no_memory(error, "no memory for an extent of " + mebibytes(run.length) +
                                  "; free some, or lower ArenaOptions::limit_bytes");
    }
    if (refused != 0) say_refused(run, offset, refused);
    return offset + length;
  }

  static Result<PageRun> begin_small(std::byte* base, size_t length) {
    hugetlb_fallback.add();
    SLUICE_RETURN_IF_ERROR(check_room(length, kLeftToSystem, "an extent of " + mebibytes(length)));
    Result<PageRun> run = map_file(base, length, 0);
    if (!run.ok()) refused_system.add();
    return run;
  }

  // The rest of the run is as the advice makes it. EINVAL: no MADV_COLLAPSE (Linux before 6.1), or
  // "deny". EAGAIN and ENOMEM: memory is scattered, or used up to a cgroup's limit.
  static void say_refused(PageRun& run, size_t offset, int error) {
    run.collapses = false;
    run.pages = PageKind::kPlain;
    // Looked up at most until the answer was no: it takes longer the more memory is mapped.
    static std::atomic<bool> advice_is_vain{false};
    if (offset == 0 && !advice_is_vain.load(std::memory_order_relaxed)) {
      if (mapped_huge(run.base)) {
        run.pages = PageKind::kTransparentHuge;
        return;
      }
      advice_is_vain.store(true, std::memory_order_relaxed);
    }
    collapse_fallback.add();
    static LogThrottle throttle;
    throttle.log(LogLevel::kInfo,
                 "the kernel gives an arena no transparent huge pages (errno " +
                     std::to_string(error) +
                     "); small pages take their place; `sluice info` says what to set");
  }

  static Result<PageRun> map_file(std::byte* base, size_t length, unsigned flags) {
    int fd = create_memfd(flags);
    if (fd < 0)
      return no_memory(errno,
                       "no descriptor for an extent; raise `ulimit -n`, or `sysctl fs.file-max` if "
                       "that is the limit");
    Status status = place(fd, base, length);
    if (status.ok() && ::madvise(base, length, MADV_DONTFORK) != 0) {
      status = no_memory(errno, "an extent cannot be kept from children; free some memory");
      give_up(base, length);
    }
    if (!status.ok()) {
      ::close(fd);
      return status;
    }
    // Advice only: without it the pages are small ones, or collapsed.
    if (flags == 0) static_cast<void>(::madvise(base, length, MADV_HUGEPAGE));
    return PageRun{.base = base,
                   .length = length,
                   .fd = fd,
                   .pages = flags != 0 ? PageKind::kHugetlb : PageKind::kTransparentHuge};
  }

  static Status place(int fd, std::byte* base, size_t length) {
    std::string size = mebibytes(length);
    // Beyond that limit ftruncate() would end the process (SIGXFSZ).
    rlimit files{};
    if (::getrlimit(RLIMIT_FSIZE, &files) == 0 && length > files.rlim_cur)
      return no_memory(EFBIG, "an extent of " + size + " is more than files of this process may " +
                                  "have; raise `ulimit -f`");
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
