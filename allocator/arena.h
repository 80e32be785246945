// Registered memory for tensors: extents of memfd memory in one reserved range of
// addresses, grown extent by extent, bounded. Knows no NIC and no socket.
#ifndef SLUICE_ALLOCATOR_ARENA_H_
#define SLUICE_ALLOCATOR_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <sluice/allocator/buffer.h>
#include <sluice/allocator/memory_registrar.h>
#include <sluice/allocator/numa.h>
#include <sluice/allocator/page_source.h>
#include <sluice/base/result.h>

namespace sluice {

struct ArenaState;
class PendingAllocation;  // <sluice/allocator/pending_allocation.h>

// Every allocation starts on such a boundary (covers Arrow's 64 and AVX-512).
inline constexpr size_t kArenaAlignment = 256;

// The peers that may map an extent. The extent is the unit of disclosure, so each audience
// has extents of its own.
enum class Audience : uint8_t {
  kSameUser = 0,  // processes of our uid and user namespace (default)
  kNobody = 1,    // never mapped by a peer: such tensors are copied
};
inline constexpr int kAudienceCount = 2;

// Bytes charged to one peer. Outlives the allocations charged to it.
// Thread: any.
class Quota {
 public:
  explicit Quota(size_t limit_bytes) : limit_(limit_bytes) {}
  size_t limit_bytes() const { return limit_; }
  size_t used_bytes() const { return used_.load(std::memory_order_relaxed); }

 private:
  friend class Arena;
  friend struct ArenaState;
  size_t limit_;
  std::atomic<size_t> used_{0};
};

struct AllocateOptions {
  Audience audience = Audience::kSameUser;
  Quota* quota = nullptr;  // charged until the memory is free again
  // May use the receive reserve: only memory that a receive needs to make progress.
  bool for_receive = false;
};

struct ArenaOptions {
  // Most bytes of extents, whole 2 MiB of it; 0: $SLUICE_ARENA_LIMIT (for example 8G),
  // else half of the machine's memory (or of the cgroup's limit), 1 TiB at most.
  size_t limit_bytes = 0;
  // Each next one doubles. All its pages are there at once: what a process takes that sends little.
  size_t first_extent_bytes = size_t{8} << 20;
  size_t largest_extent_bytes = size_t{1} << 30;
  // Kept free for receives, in one piece and for the default audience, so that sending
  // can never stop receiving, also not by fragmentation.
  size_t receive_reserve_bytes = size_t{4} << 20;
  // On which memory nodes extents lie; unset: $SLUICE_ARENA_NUMA, else as the process's policy
  // says. Pages that the kernel moves later need not keep to it.
  std::optional<NumaPlacement> numa = {};
};

struct ExtentInfo {
  ExtentId id = 0;            // never reused within an arena; starts at 1
  uint64_t arena_offset = 0;  // from the arena's first address
  uint64_t length = 0;
  int fd = -1;  // lent; valid while the extent lives
  Audience audience = Audience::kSameUser;
  PageKind pages = PageKind::kPlain;
};

// A snapshot. Calls of other threads that run meanwhile may be missing.
struct ArenaStatistics {
  // used_bytes: what Buffers and Tensors hold. cached_bytes: freed and kept for the next
  // request of the size, taken back when memory is short. peak_used_bytes counts both.
  size_t limit_bytes, reserved_address_bytes, extent_bytes, used_bytes, peak_used_bytes,
      cached_bytes;
  uint64_t extents_added, extents_removed, allocations, failures;
  size_t outstanding;  // Buffers and Tensors alive
};

// Thread: any (an arena may serve several Contexts). Ownership: memory handed out
// keeps the mapping alive; destroying the Arena with allocations outstanding is
// allowed, the extents go when the last one ends.
class Arena {
 public:
  // Requires: pages and registrar (may be null) outlive the arena and its allocations.
  // Errors: kNoMemory (address space), kInvalidArgument (options contradict, no such memory node),
  // kUnsupported (the system lets nobody choose memory nodes).
  static Result<std::unique_ptr<Arena>> create(const ArenaOptions& options,
                                               PageSource& pages = system_page_source(),
                                               MemoryRegistrar* registrar = nullptr);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Uninitialised memory (zeroed the first time), aligned to kArenaAlignment.
  // `bytes` above 64 KiB are rounded up to 4 KiB, below to one of eight sizes per doubling.
  // Errors: kNoMemory (arena limit or quota: the detail says which, its size, and how
  // to raise it), kInvalidArgument (bad shape), kWrongState (in a forked child).
  // Blocks: only when an extent must be added; then while the kernel zeroes it, 0.4 to 0.7 s for
  // each GiB (docs/performance.md, "Pages"). Peers take a thread that blocks for seconds for
  // silent: for large sizes call start_allocate() (<sluice/api/allocating.h>).
  // Cost: tens of ns when warm, no system call.
  Result<Buffer> allocate(size_t bytes, const AllocateOptions& options = {});
  Result<Buffer> allocate(std::span<const int64_t> shape, DataType dtype,
                          const AllocateOptions& options = {});
  // allocate() of memory that is there already: it neither grows the arena nor takes memory of the
  // heap. Empty: begin_allocate().
  std::optional<Result<Buffer>> allocate_present(size_t bytes, const AllocateOptions& options = {});
  // allocate() in steps, none of which blocks for long. Never null; errors come with its take().
  std::unique_ptr<PendingAllocation> begin_allocate(size_t bytes,
                                                    const AllocateOptions& options = {});

  // Where [data, data + length) lies, if wholly in live extents of one audience.
  // A run may continue into the extents that follow in address order.
  struct Place {
    ExtentInfo first;        // the extent of the first byte
    uint64_t extent_offset;  // within it
    uint64_t arena_offset;
  };
  // Cost: O(1), no lock that allocation holds for long.
  std::optional<Place> locate(const void* data, size_t length) const;
  // Extents that overlap [arena_offset, arena_offset + length), in address order.
  std::vector<ExtentInfo> extents_over(uint64_t arena_offset, uint64_t length) const;
  std::optional<ExtentInfo> extent(ExtentId id) const;
  // Before a peer gets the extent's descriptor: it can then map it, read-only. Until then the
  // extent is freed in slices. Requires: memory of it is in use. Errors: kNoMemory.
  Status seal(const ExtentInfo& extent);

  const NumaPlacement& numa() const;
  std::byte* base() const;
  // Length of the reserved range of addresses: what a peer reserves to map us.
  size_t reserved_address_bytes() const;

  // Grows until at least `bytes` are free, so that later allocations touch no
  // system call. Errors: kNoMemory.
  Status prefault(size_t bytes, Audience audience = Audience::kSameUser);
  // Tells `registrar` of every present and future extent, until detach(). Errors: those of the
  // registrar for one extent (the others are then unregistered). Blocks: while it registers.
  // Requires: the registrar lives until detach(). detach() does not call it.
  Status attach(MemoryRegistrar& registrar);
  void detach(MemoryRegistrar& registrar);
  // Gives whole free extents back to the system; returns the bytes given back. The
  // receive reserve goes with the last of them and comes back with the next.
  // Blocks: while the kernel frees them, up to 0.25 s for each GiB of small pages, 5 ms of huge
  // ones (docs/performance.md, "Pages").
  size_t trim();
  // trim() in steps. Whole free extents are nobody's from now on and go back by free_some(), which
  // contexts do in their progress(); ending the arena frees the rest at once. Returns their bytes;
  // 0 also while another thread grows the arena.
  size_t start_trim();
  // Gives back up to `bytes`, rounded up to whole 2 MiB, of what start_trim() and abandoned
  // allocations left. Returns how many; 0 also while another thread grows the arena. Blocks: with
  // the last bytes of an extent that was sealed while the kernel frees it whole: its seals, which
  // protect peers, let nobody free a part of it.
  size_t free_some(size_t bytes);
  // What is left for it.
  size_t freeing_bytes() const;

  ArenaStatistics statistics() const;

  // In a forked child: allocate() and prefault() give kWrongState, the others nothing;
  // ending the Arena and its Buffers is allowed and touches no memory of the parent.

 private:
  explicit Arena(ArenaState* state) : state_(state) {}
  ArenaState* state_;
};

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_ARENA_H_
