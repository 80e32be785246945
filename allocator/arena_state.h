// The arena behind its handle. Private to arena.cc, arena_runs.cc and arena_growth.cc.
#ifndef SLUICE_ALLOCATOR_ARENA_STATE_H_
#define SLUICE_ALLOCATOR_ARENA_STATE_H_

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/base/process_mark.h>

#include "allocator/block_cache.h"
#include "allocator/free_runs.h"

namespace sluice {

inline constexpr uint64_t kExtentGranule = 2u << 20;
// Extents at once: doubling from 8 MiB to 1 GiB, a terabyte needs about as many.
inline constexpr size_t kMostExtents = 1024;

struct Extent {
  ExtentInfo info;
  PageRun run;
};

// An extent in the making. Its addresses are nobody else's.
struct GrowingExtent {
  uint64_t offset = 0;
  uint64_t carved = 0;     // at its start, for the receive reserve
  uint64_t continued = 0;  // of the memory before it, what is taken with it
  Audience audience = Audience::kSameUser;
  PageRun run;
  ExtentId id = 0;
};

// One that is in no table any more; its memory goes back in slices.
struct LeavingExtent {
  uint64_t offset = 0;
  PageRun run;
  size_t unmapped = 0;
};

// Locks, in this order: grow_mutex (held while the system places memory), mutex (held
// for a look-up or a change of the tables), a shard's lock. Nothing is called outside
// the arena under the last two.
struct ArenaState {
  ArenaState(const ArenaOptions& o, PageSource& p, MemoryRegistrar* r);
  ~ArenaState();

  // arena_runs.cc: where a run comes from and goes to.
  // Counted as live when it returns. Errors: as Arena::allocate().
  Result<ArenaBlock*> take(uint64_t length, const AllocateOptions& options);
  // From what is there, counted as live; null: the arena must grow.
  ArenaBlock* take_present(uint64_t length, const AllocateOptions& options);
  ArenaBlock* take_free(int audience, uint64_t length);                 // under `mutex`
  ArenaBlock* take_at(int audience, uint64_t offset, uint64_t length);  // under `mutex`
  ArenaBlock* take_of_reserve(uint64_t length);                         // under `mutex`
  void count_live();
  // False: the quota is used up.
  static bool charge(Quota* quota, uint64_t length);
  static void refund(Quota* quota, uint64_t length);
  Buffer buffer_of(ArenaBlock* block, size_t bytes, Quota* quota);
  static void on_release(Storage* storage) noexcept;
  void end();  // of the handle
  Status refused_by_limit(uint64_t bytes);
  uint64_t limit_for(uint64_t bytes, uint64_t used) const;
  Status refused_by_quota(uint64_t bytes, const Quota& quota);
  Status in_forked_child_status() const;
  // Under `mutex`.
  void flush_caches();
  uint64_t taken_bytes() const;  // used and cached

  // arena_growth.cc: extents. Under `grow_mutex`, without `mutex`.
  // Adds an extent such that a run of `bytes` is free (continuing the free run before
  // it), or, without `one_run`, such that `bytes` more are. Nothing but the reserve is
  // added for 0 bytes. Where the limit is in the way, free extents are given back first.
  Status grow(uint64_t bytes, Audience audience, bool one_run);
  size_t trim(std::optional<Audience> spared = std::nullopt);
  // trim() in two parts: what is free leaves its tables; up to `bytes` of what left go back.
  size_t start_trim(std::optional<Audience> spared = std::nullopt);
  size_t free_some(size_t bytes);
  // What an extent must hold, by where it comes to lie.
  struct Need {
    uint64_t bytes = 0;        // anywhere
    uint64_t at_end = 0;       // after the last extent, whose free tail it continues
    uint64_t continued = 0;    // that tail
    uint64_t preferred = 0;    // if memory and limit allow
    uint64_t carved = 0;       // of it for the receive reserve
    uint64_t most = 0;         // what the limit leaves
    uint64_t reclaimable = 0;  // by trim()
  };
  Need need_for(uint64_t bytes, Audience audience, bool one_run,
                std::optional<Audience> spared) const;
  std::optional<uint64_t> place(const Need& need, uint64_t* length);
  Result<PageRun> commit(uint64_t offset, uint64_t length);
  // Pages of a run that is in no table, up to `length` bytes from `offset` of it on, by the arena's
  // placement. Takes no lock. Result and errors: as PageSource::populate().
  Result<size_t> populate(PageRun& run, size_t offset, size_t length);
  Status register_extent(GrowingExtent& made);  // gives it an id. Errors: kNoMemory
  Status no_slot() const;
  void enter_extent(const GrowingExtent& made);     // under `mutex` too
  void leave(uint64_t offset, const PageRun& run);  // under `mutex`

  ArenaOptions options;
  PageSource& pages;
  std::vector<int> nodes;                    // that kInterleave goes over
  std::vector<MemoryRegistrar*> registrars;  // changed and told under grow_mutex
  std::byte* base = nullptr;
  uint64_t reserved = 0;
  ProcessMark owner = ProcessMark::current();

  std::array<CacheShard, kCacheShards> shards;
  std::atomic<uint64_t> failures{0};
  std::atomic<int64_t> remaining{0};  // what outlives the handle, counted once it has ended

  // granule -> index of its extent + 1; 0: none. Written under `mutex`, read without: the
  // entry of memory that is in use does not change.
  std::unique_ptr<std::atomic<uint16_t>[]> granules;
  std::unique_ptr<Extent[]> extents;

  mutable std::mutex mutex;
  std::array<FreeRuns, kAudienceCount> free_runs;
  FreeRuns reserve_runs;        // free bytes of the receive reserve
  bool reserve_placed = false;  // false: growth for others leaves room for it
  ArenaBlock* spare_blocks = nullptr;
  uint64_t extent_bytes = 0;  // changed under both mutexes
  std::array<uint64_t, kAudienceCount> audience_bytes{};
  std::array<uint32_t, kAudienceCount> audience_extents{};
  uint64_t peak = 0;
  uint64_t extents_added = 0, extents_removed = 0;

  std::deque<LeavingExtent> leaving;  // under `mutex`; the first is changed under grow_mutex
  std::atomic<uint64_t> leaving_bytes{0};
  // Of extents in the making and of those that leave: they count against the limit.
  std::atomic<uint64_t> pending_bytes{0};

  std::mutex grow_mutex;
  FreeRuns free_addresses;
  std::vector<uint16_t> free_slots;
  ExtentId next_id = 1;

 private:
  ArenaBlock* take_from_other_shards(int audience, int size_class, uint64_t length);
  ArenaBlock* make_block(uint64_t offset, uint64_t length);  // under `mutex`
  void recycle(ArenaBlock* block) noexcept;                  // under `mutex`
  Result<ArenaBlock*> take_by_growing(uint64_t length, const AllocateOptions& options);
  void drop_remaining() noexcept;

  Status add_extent(uint64_t offset, uint64_t length, Audience audience, uint64_t carved);
  Status tell_added(ExtentId id, std::byte* data, size_t length);
  void tell_removed(ExtentId id) noexcept;
  bool reserve_idle() const;  // under `mutex`
  // Not those of `spared`. Under `mutex`.
  std::vector<uint16_t> whole_free_extents(std::optional<Audience> spared) const;
};

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_ARENA_STATE_H_
