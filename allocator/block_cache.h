// Blocks that were freed and wait for the next request of their class: one shard per
// few threads, so that a warm allocation takes an uncontended lock and nothing else.
#ifndef SLUICE_ALLOCATOR_BLOCK_CACHE_H_
#define SLUICE_ALLOCATOR_BLOCK_CACHE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include <sluice/allocator/storage.h>

#include "allocator/size_classes.h"

namespace sluice {

class Quota;
struct ArenaState;

// Control block of one allocation; never lies in an extent. Recycled with its run.
class ArenaBlock final : public Storage {
 public:
  void start(std::byte* data, size_t size, Release release) noexcept { reset(data, size, StorageKind::kArena, release); }

  ArenaState* arena = nullptr;
  uint64_t offset = 0;  // of its run in the arena
  uint32_t size_class = 0;
  uint8_t audience = 0;
  Quota* quota = nullptr;
  ArenaBlock* next = nullptr;
};

class SpinLock {
 public:
  void lock() noexcept {
    while (flag_.test_and_set(std::memory_order_acquire)) {
      while (flag_.test(std::memory_order_relaxed)) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
    }
  }
  void unlock() noexcept { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_;
};

inline constexpr int kCacheShards = 8;

struct alignas(128) CacheShard {
  SpinLock lock;
  uint64_t cached_bytes = 0;
  uint64_t allocations = 0;
  std::array<std::array<ArenaBlock*, kClassCount>, 2> blocks{};  // by audience and class
};

// The calling thread's shard.
inline int shard_of_thread() {
  static std::atomic<unsigned> next{0};
  thread_local const int shard = static_cast<int>(next.fetch_add(1, std::memory_order_relaxed) % kCacheShards);
  return shard;
}

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_BLOCK_CACHE_H_
