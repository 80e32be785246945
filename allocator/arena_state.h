// The arena behind its handle. Private to arena.cc and arena_growth.cc.
#ifndef SLUICE_ALLOCATOR_ARENA_STATE_H_
#define SLUICE_ALLOCATOR_ARENA_STATE_H_

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include <sluice/allocator/arena.h>

#include "allocator/block_cache.h"
#include "allocator/free_runs.h"

namespace sluice {

inline constexpr uint64_t kExtentGranule = 2u << 20;
// Extents at once: doubling from 64 MiB to 1 GiB, a terabyte needs about as many.
inline constexpr size_t kMostExtents = 1024;

struct Extent {
  ExtentInfo info;
  PageRun run;
};

struct ArenaState {
  ArenaState(const ArenaOptions& o, PageSource& p, MemoryRegistrar* r) : options(o), pages(p), registrar(r) {}
  ~ArenaState();

  // All under `mutex`.
  Status grow(uint64_t bytes, Audience audience);
  Status add_extent(uint64_t length, Audience audience);
  size_t trim();
  void flush_caches();
  ArenaBlock* take_block();
  Status limit_status(uint64_t bytes) const;

  // One reference for the handle and one for each allocation.
  void unref() noexcept {
    if (references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  static void on_release(Storage* storage) noexcept;

  ArenaOptions options;
  PageSource& pages;
  MemoryRegistrar* registrar;
  std::byte* base = nullptr;
  uint64_t reserved = 0;
  const std::atomic<uint32_t>* fork_page = nullptr;  // reads 0 in a forked child

  std::array<CacheShard, kCacheShards> shards;
  std::atomic<uint64_t> used{0};
  std::atomic<uint64_t> peak{0};
  std::atomic<uint64_t> failures{0};
  std::atomic<int64_t> references{1};

  // granule -> index of its extent + 1; 0: none. Written under `mutex`, read without: the
  // entry of memory that is in use does not change.
  std::unique_ptr<std::atomic<uint16_t>[]> granules;
  std::unique_ptr<Extent[]> extents;

  mutable std::mutex mutex;
  std::array<FreeRuns, kAudienceCount> free_runs;
  FreeRuns free_addresses;
  std::vector<uint16_t> free_slots;
  ArenaBlock* spare_blocks = nullptr;
  uint64_t extent_bytes = 0;
  uint64_t next_extent_bytes = 0;
  uint64_t extents_added = 0, extents_removed = 0;
  ExtentId next_id = 1;
};

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_ARENA_STATE_H_
