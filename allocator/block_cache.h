// Blocks that were freed and wait for the next request of their size: one shard per
// few threads, so that a warm allocation takes an uncontended lock and nothing else.
// Their bytes are bounded by the arena's extents; all are taken back when it is short.
#ifndef SLUICE_ALLOCATOR_BLOCK_CACHE_H_
#define SLUICE_ALLOCATOR_BLOCK_CACHE_H_

#include <sched.h>

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
  void start(std::byte* data, Release release) noexcept {
    reset(data, length, StorageKind::kArena, release);
  }

  ArenaState* arena = nullptr;
  uint64_t offset = 0;  // of its run in the arena
  uint64_t length = 0;
  uint32_t size_class = 0;
  uint8_t audience = 0;
  bool of_reserve = false;  // goes back there, never into a cache
  Quota* quota = nullptr;
  ArenaBlock* next = nullptr;
};

// For a few instructions at a time.
class SpinLock {
 public:
  bool try_lock() noexcept { return !flag_.test_and_set(std::memory_order_acquire); }
  void lock() noexcept {
    for (int tries = 0; !try_lock(); ++tries) {
      // The holder may have lost its CPU to us.
      if (tries >= kSpins) ::sched_yield();
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }
  void unlock() noexcept { flag_.clear(std::memory_order_release); }

 private:
  static constexpr int kSpins = 64;
  std::atomic_flag flag_;
};

inline constexpr int kCacheShards = 8;

struct alignas(128) CacheShard {
  // Runs of one class above kSmallBytes differ in length: this many are looked at.
  static constexpr int kMostTries = 4;

  // All under `lock`.
  ArenaBlock* take(int audience, int size_class, uint64_t length) noexcept {
    ArenaBlock** link = &blocks[static_cast<size_t>(audience)][static_cast<size_t>(size_class)];
    for (int tries = 0; *link != nullptr && tries < kMostTries; ++tries, link = &(*link)->next) {
      if ((*link)->length != length) continue;
      ArenaBlock* block = *link;
      *link = block->next;
      cached_bytes -= length;
      return block;
    }
    return nullptr;
  }
  void put(ArenaBlock* block) noexcept {
    ArenaBlock*& head = blocks[block->audience][block->size_class];
    block->next = head;
    head = block;
    cached_bytes += block->length;
  }

  SpinLock lock;
  bool closed = false;  // the Arena has ended; only its memory lives on
  int64_t live =
      0;  // allocations minus releases counted here; only the sum over shards means something
  uint64_t allocations = 0;
  uint64_t cached_bytes = 0;
  std::array<std::array<ArenaBlock*, kClassCount>, 2> blocks{};  // by audience and class
};

// The calling thread's shard.
inline size_t shard_of_thread() {
  static constinit std::atomic<uint32_t> threads{0};
  static constinit thread_local uint32_t number = 0;
  if (number == 0) [[unlikely]]
    number = threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return number % kCacheShards;
}

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_BLOCK_CACHE_H_
