// A page source without memfds: ordinary memory, every call recorded, any call made
// to fail. What the arena asked for and gave back is checked at the end.
#ifndef SLUICE_TESTS_ALLOCATOR_FAKE_PAGE_SOURCE_H_
#define SLUICE_TESTS_ALLOCATOR_FAKE_PAGE_SOURCE_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <set>

#include <sluice/allocator/arena.h>
#include <sluice/allocator/memory_registrar.h>
#include <sluice/allocator/page_source.h>
#include <sluice/allocator/pending_allocation.h>

namespace sluice::test {

// Counts fallible calls, of the page source and the registrar together, and fails one.
class FailNth {
 public:
  explicit FailNth(uint64_t nth = 0) : nth_(nth) {}
  bool fails() { return ++calls_ == nth_; }
  uint64_t calls() const { return calls_; }
  bool reached() const { return nth_ != 0 && calls_ >= nth_; }

 private:
  uint64_t nth_;
  uint64_t calls_ = 0;
};

// Thread: any, as the arena serialises growth (checked by TSan through the plain members).
class FakePageSource final : public PageSource {
 public:
  explicit FakePageSource(FailNth* failures = nullptr) : failures_(failures) {}
  ~FakePageSource() override {
    if (reserved_bytes != 0 || !committed.empty()) std::abort();  // the arena left something behind
  }

  Result<std::byte*> reserve(size_t length) override {
    if (failures_ != nullptr && failures_->fails()) return refusal("reserve");
    // Untouched pages of an allocation cost no memory, as those of a reservation.
    void* memory = std::aligned_alloc(size_t{2} << 20, length);
    if (memory == nullptr) return refusal("aligned_alloc");
    reserved_bytes += length;
    return static_cast<std::byte*>(memory);
  }
  void unreserve(std::byte* base, size_t length) noexcept override {
    reserved_bytes -= length;
    std::free(base);
  }
  Result<PageRun> commit(std::byte* base, size_t length) override {
    if (during_commit) during_commit();
    ++commits;
    if (failures_ != nullptr && failures_->fails()) return refusal("commit");
    if (length % (size_t{2} << 20) != 0) std::abort();
    for (const auto& [other, other_length] : committed) {
      if (base < other + other_length && other < base + length) std::abort();  // overlap
    }
    std::memset(base, 0, length);
    committed[base] = length;
    return PageRun{.base = base, .length = length, .fd = next_fd++, .pages = PageKind::kPlain};
  }
  void decommit(const PageRun& run) noexcept override {
    if (committed.erase(run.base) != 1) std::abort();
  }

  size_t committed_bytes() const {
    size_t sum = 0;
    for (const auto& [base, length] : committed) sum += length;
    return sum;
  }

  std::map<std::byte*, size_t> committed;
  size_t reserved_bytes = 0;
  uint64_t commits = 0;
  int next_fd = 1000;
  std::function<void()> during_commit;

 private:
  static Status refusal(const char* call) {
    return Status(Code::kNoMemory, Scope::kOperation, "tests/fake_page_source",
                  std::string("told to fail: ") + call);
  }
  FailNth* failures_;
};

class FakeRegistrar final : public MemoryRegistrar {
 public:
  explicit FakeRegistrar(FailNth* failures = nullptr) : failures_(failures) {}
  ~FakeRegistrar() override {
    if (!registered.empty()) std::abort();
  }
  Status extent_added(ExtentId id, std::byte* base, size_t length) override {
    ++added;
    if (failures_ != nullptr && failures_->fails()) {
      return Status(Code::kNoMemory, Scope::kOperation, "tests/fake_registrar",
                    std::string("told to fail: extent_added"));
    }
    if (!known_.insert(id).second) std::abort();  // an id is used once
    registered.emplace(id, length);
    last_id = std::max(last_id, id);
    bases[id] = base;
    return Status();
  }
  void extent_removed(ExtentId id) noexcept override {
    if (registered.erase(id) != 1) std::abort();
  }

  // What the device does by itself once no arena knows it.
  void forget() {
    registered.clear();
    known_.clear();
  }

  std::map<ExtentId, size_t> registered;
  std::map<ExtentId, std::byte*> bases;
  uint64_t added = 0;
  ExtentId last_id = 0;

 private:
  FailNth* failures_;
  std::set<ExtentId> known_;
};

inline constexpr size_t kMiB = size_t{1} << 20;

// A small arena: extents of 2 MiB doubling to 8.
inline ArenaOptions small_options(size_t limit_bytes = 32 * kMiB, size_t reserve_bytes = 2 * kMiB) {
  return {.limit_bytes = limit_bytes,
          .first_extent_bytes = 2 * kMiB,
          .largest_extent_bytes = 8 * kMiB,
          .receive_reserve_bytes = reserve_bytes};
}

// Of one thread: nobody else grows the arena meanwhile.
inline Result<Buffer> allocate_in_steps(Arena& arena, size_t bytes,
                                        const AllocateOptions& options = {}) {
  auto pending = arena.begin_allocate(bytes, options);
  while (!pending->ready()) {
    if (!pending->step()) std::abort();
  }
  return pending->take();
}

}  // namespace sluice::test

#endif  // SLUICE_TESTS_ALLOCATOR_FAKE_PAGE_SOURCE_H_
