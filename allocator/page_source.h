// The seam to the system's memory calls: everything above is tested on a fake.
#ifndef SLUICE_ALLOCATOR_PAGE_SOURCE_H_
#define SLUICE_ALLOCATOR_PAGE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <sluice/base/result.h>

namespace sluice {

enum class PageKind : uint8_t { kPlain, kTransparentHuge, kHugetlb };
std::string_view to_string(PageKind kind);

// One extent of shareable memory, mapped writable at the place asked for.
struct PageRun {
  std::byte* base = nullptr;
  size_t length = 0;
  int fd = -1;  // sealed memfd, close-on-exec; lent, owned by the page source
  PageKind pages = PageKind::kPlain;
};

class PageSource {
 public:
  virtual ~PageSource() = default;

  // Address space without memory. Errors: kNoMemory.
  virtual Result<std::byte*> reserve(size_t length) = 0;
  virtual void unreserve(std::byte* base, size_t length) noexcept = 0;

  // Backs [base, base + length) of a reservation with zeroed, allocated memory that
  // can be mapped by peers (read-only for them: sealed SHRINK, GROW, FUTURE_WRITE,
  // SEAL after our own mapping), not inherited by fork.
  // Requires: base and length are multiples of 2 MiB.
  // Errors: kNoMemory (the detail names the limit and the command that lifts it).
  // Blocks: while the kernel zeroes the pages.
  virtual Result<PageRun> commit(std::byte* base, size_t length) = 0;
  // Gives the memory back; the addresses stay reserved.
  virtual void decommit(const PageRun& run) noexcept = 0;
};

// The real one. Huge pages by MFD_HUGETLB where enough are reserved (found by
// mapping), else transparent huge pages by advice, else plain ones.
PageSource& system_page_source();

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_PAGE_SOURCE_H_
