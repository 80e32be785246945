// A machine with more memory than this one: extents are addresses that the kernel backs page by
// page as a test touches them. Records the slices that a loop takes, and fails one.
#ifndef SLUICE_TESTS_RUNTIME_UNBACKED_PAGE_SOURCE_H_
#define SLUICE_TESTS_RUNTIME_UNBACKED_PAGE_SOURCE_H_

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include <sluice/allocator/page_source.h>

namespace sluice::test {

class UnbackedPageSource final : public PageSource {
 public:
  ~UnbackedPageSource() override {
    if (reserved_bytes != 0 || !mapped.empty()) std::abort();  // the arena left something behind
  }
  Result<std::byte*> reserve(size_t length) override {
    void* memory = ::mmap(nullptr, length, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return refusal("no addresses");
    reserved_bytes += length;
    return static_cast<std::byte*>(memory);
  }
  void unreserve(std::byte* base, size_t length) noexcept override {
    ::munmap(base, length);
    reserved_bytes -= length;
  }
  Result<PageRun> commit(std::byte* base, size_t length) override {
    ++commits;
    if (during_commit) during_commit();
    return begin_commit(base, length);
  }
  void decommit(const PageRun& run) noexcept override {
    ++decommits;
    auto found = mapped.find(run.base);
    if (found == mapped.end() || found->second != run.length) std::abort();
    mapped.erase(found);
  }
  Result<PageRun> begin_commit(std::byte* base, size_t length) override {
    mapped[base] = length;
    return PageRun{.base = base, .length = length};
  }
  Result<size_t> populate(PageRun& run, size_t offset, size_t length) override {
    ++slices;
    if (std::this_thread::get_id() != helped) ++slices_elsewhere;
    while (slices == hold_at) std::this_thread::yield();
    largest_slice = std::max(largest_slice.load(), length);
    populated_bytes += length;
    if (slices == fails_at) return refusal("told to fail");
    if (slices == short_at) return offset;
    if (offset + length > run.length) std::abort();
    return offset + length;
  }
  Result<PageRun> go_on_small(PageRun& run, size_t offset) override {
    const PageRun rest{.base = run.base + offset, .length = run.length - offset};
    if (slices == fails_at) return refusal("told to fail");
    ::madvise(rest.base, rest.length, MADV_DONTNEED);  // other pages, and zeroed
    mapped.erase(run.base);
    if (offset > 0) mapped[run.base] = offset;
    mapped[rest.base] = rest.length;
    run.length = offset;
    return rest;
  }
  Status end_commit(PageRun&) override { return Status(); }
  void begin_decommit(const PageRun& run, size_t offset, size_t length) noexcept override {
    ++free_slices;
    if (std::this_thread::get_id() != helped) ++slices_elsewhere;
    largest_free_slice = std::max(largest_free_slice, length);
    if (offset + length > run.length) std::abort();
  }

  std::map<std::byte*, size_t> mapped;
  size_t reserved_bytes = 0, largest_free_slice = 0;
  std::atomic<size_t> largest_slice{0}, populated_bytes{0};
  // What other threads than this one did.
  const std::thread::id helped = std::this_thread::get_id();
  std::atomic<uint64_t> slices_elsewhere{0};
  // populate() does not return from this one of `slices` before it is changed; 0: none.
  std::atomic<uint64_t> hold_at{0};
  std::function<void()> during_commit;
  std::atomic<uint64_t> commits{0}, decommits{0}, slices{0}, free_slices{0};
  uint64_t fails_at = 0, short_at = 0;  // of `slices`; 0: never

 private:
  static Status refusal(const char* why) {
    return Status(Code::kNoMemory, Scope::kOperation, "tests/unbacked_page_source",
                  std::string(why));
  }
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_RUNTIME_UNBACKED_PAGE_SOURCE_H_
