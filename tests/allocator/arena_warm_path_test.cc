// A warm arena: no operator new, no page fault, no mapping, no registration.
#include <sluice/allocator/arena.h>

#include <catch2/catch.hpp>

#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include <sluice/base/counters.h>

namespace {
std::atomic<uint64_t> news{0};
}  // namespace

void* operator new(size_t bytes) {
  news.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  news.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace sluice {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kSizes[] = {1, 4096, 5000, 65536, 1'000'000, 4 * kMiB, 20 * kMiB + 3};

long page_faults() {
  rusage usage;
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

class CountingRegistrar final : public MemoryRegistrar {
 public:
  Status extent_added(ExtentId, std::byte*, size_t) override {
    ++calls;
    return Status();
  }
  void extent_removed(ExtentId) noexcept override { ++calls; }
  int calls = 0;
};

struct Cost {
  uint64_t news;
  long faults;
  uint64_t extents;
  int registrations;
};

// A buffer of each size, written at every page, frozen and dropped.
void one_round(Arena& arena) {
  for (size_t bytes : kSizes) {
    auto buffer = arena.allocate(bytes);
    if (!buffer.ok()) std::abort();
    for (size_t at = 0; at < bytes; at += 4096) buffer->data()[at] = std::byte{1};
    Tensor tensor = std::move(*buffer).freeze();
  }
}

Cost cost_of(Arena& arena, CountingRegistrar& registrar, void (*rounds)(Arena&)) {
  uint64_t news_before = news.load();
  uint64_t extents = read_counter("allocator.extents_added");
  int calls = registrar.calls;
  long faults = page_faults();
  news_before = news.load();
  rounds(arena);
  uint64_t news_after = news.load();
  faults = page_faults() - faults;
  return {news_after - news_before, faults, read_counter("allocator.extents_added") - extents,
          registrar.calls - calls};
}

TEST_CASE("a warm pair asks nobody for anything") {
  CountingRegistrar registrar;
  auto arena =
      std::move(Arena::create({.limit_bytes = 256 * kMiB}, system_page_source(), &registrar))
          .value();
  // The second round finds other runs free than the first one, with the extents that this made.
  for (int i = 0; i < 2; ++i) one_round(*arena);
  page_faults();
  Cost cost = cost_of(*arena, registrar, [](Arena& a) {
    for (int i = 0; i < 20; ++i) one_round(a);
  });
  CHECK(cost.news == 0);
  CHECK(cost.extents == 0);
  CHECK(cost.registrations == 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(cost.faults == 0);  // shadow memory of a sanitizer faults by itself
#endif
}

TEST_CASE("fresh memory of a prefaulted arena causes no page fault") {
  CountingRegistrar registrar;
  auto arena =
      std::move(Arena::create({.limit_bytes = 128 * kMiB}, system_page_source(), &registrar))
          .value();
  REQUIRE(arena->prefault(40 * kMiB).ok());
  Cost cost = cost_of(*arena, registrar, one_round);
  CHECK(cost.extents == 0);
  CHECK(cost.registrations == 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // Control blocks are made here, on the process's heap: not one fault per page of payload.
  CHECK(cost.faults < 16);
#endif
}

TEST_CASE("memory handed from thread to thread is warm, too") {
  auto arena = std::move(Arena::create({.limit_bytes = 128 * kMiB})).value();
  std::atomic<int> turn{0};
  Buffer passed;
  uint64_t counted = 0;
  constexpr int kRounds = 200;
  std::thread freeing([&] {
    for (int i = 0; i < kRounds; ++i) {
      while (turn.load(std::memory_order_acquire) != 2 * i + 1) std::this_thread::yield();
      passed = Buffer();
      turn.store(2 * i + 2, std::memory_order_release);
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    uint64_t before = news.load();
    passed = std::move(arena->allocate(i % 2 == 0 ? 4096 : 300'000)).value();
    if (i >= 4) counted += news.load() - before;
    turn.store(2 * i + 1, std::memory_order_release);
    while (turn.load(std::memory_order_acquire) != 2 * i + 2) std::this_thread::yield();
  }
  freeing.join();
  CHECK(counted == 0);
}

}  // namespace
}  // namespace sluice
