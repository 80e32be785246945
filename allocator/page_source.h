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
  int fd = -1;  // memfd, close-on-exec; lent, owned by the page source
  PageKind pages = PageKind::kPlain;
  bool collapses = true;  // of the system's source: MADV_COLLAPSE was not refused yet
  bool sealed = false;    // by seal()
};

class PageSource {
 public:
  virtual ~PageSource() = default;

  // Address space without memory. Errors: kNoMemory.
  virtual Result<std::byte*> reserve(size_t length) = 0;
  virtual void unreserve(std::byte* base, size_t length) noexcept = 0;

  // Backs [base, base + length) of a reservation with zeroed, allocated memory that
  // peers can map once seal() was called, not inherited by fork.
  // Requires: base and length are multiples of 2 MiB.
  // Errors: kNoMemory (the detail names the limit and the command that lifts it).
  // Blocks: while the kernel zeroes the pages.
  virtual Result<PageRun> commit(std::byte* base, size_t length) = 0;
  // Before a peer gets the descriptor: it can map the run read-only, and nobody can take pages out
  // of it any more (SHRINK, GROW, FUTURE_WRITE, SEAL, after our own mapping). Thread: any.
  // Errors: kNoMemory.
  virtual Status seal(const PageRun& run) {
    static_cast<void>(run);
    return Status();
  }
  // Gives the memory back; the addresses stay reserved.
  virtual void decommit(const PageRun& run) noexcept = 0;

  // commit() and decommit() in steps, for a loop that must not block. A source that overrides none
  // of these does all in the first or the last step.
  //
  // Maps the run without its pages. Nobody touches the memory before end_commit(). Requires and
  // errors: as commit(). Blocks: not for long, whatever the length.
  virtual Result<PageRun> begin_commit(std::byte* base, size_t length) {
    return commit(base, length);
  }
  // Provides the pages of [offset, offset + length). Returns up to where the run has pages now:
  // `offset` if there are no more pages of its kind, after which go_on_small() has others.
  // Requires: offset and length are multiples of 2 MiB, within the run. Thread: any, for one run at
  // a time. Errors: kNoMemory; the run is then only to be given back.
  virtual Result<size_t> populate(PageRun& run, size_t offset, size_t length) {
    static_cast<void>(offset);
    static_cast<void>(length);
    return run.length;
  }
  // Ends `run` where it has pages, at `offset`, and begins another behind it, of small pages. With
  // an offset of 0 nothing is left of `run`. Errors: kNoMemory; `run` is as it was.
  virtual Result<PageRun> go_on_small(PageRun& run, size_t offset) {
    static_cast<void>(run);
    static_cast<void>(offset);
    return Status(Code::kInternal, Scope::kOperation, "allocator/page_source",
                  "this source has one kind of pages");
  }
  // After the last page: the run is what commit() would have returned. Errors: as populate().
  virtual Status end_commit(PageRun& run) {
    static_cast<void>(run);
    return Status();
  }
  // Frees [offset, offset + length), or of a sealed run takes it out of our addresses, as far as
  // that saves decommit() time. Nobody touches the run any more. Requires: as populate().
  virtual void begin_decommit(const PageRun& run, size_t offset, size_t length) noexcept {
    static_cast<void>(run);
    static_cast<void>(offset);
    static_cast<void>(length);
  }
};

// The real one. Huge pages by MFD_HUGETLB where enough are reserved (found by mapping), else
// transparent huge pages, by advice or by MADV_COLLAPSE, else plain ones.
PageSource& system_page_source();

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_PAGE_SOURCE_H_
