// One allocation in steps, for a loop that must not block while the kernel zeroes pages. Programs
// with a Context call start_allocate() (<sluice/api/allocating.h>), which takes the steps for them.
#ifndef SLUICE_ALLOCATOR_PENDING_ALLOCATION_H_
#define SLUICE_ALLOCATOR_PENDING_ALLOCATION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <sluice/allocator/arena.h>
#include <sluice/allocator/buffer.h>
#include <sluice/base/result.h>

namespace sluice {

struct GrowingExtent;

// Made by Arena::begin_allocate(). Requires: the arena outlives it. Destroying it gives up: what it
// took leaves by Arena::free_some(). Thread: one at a time.
class PendingAllocation {
 public:
  // Pages of one step, the smallest piece of work: a huge page. About 0.4 ms, or 0.7 ms of small
  // pages (docs/performance.md, "Pages").
  static constexpr size_t kStepBytes = size_t{2} << 20;

  PendingAllocation(ArenaState* arena, size_t bytes, const AllocateOptions& options);
  ~PendingAllocation();
  PendingAllocation(const PendingAllocation&) = delete;
  PendingAllocation& operator=(const PendingAllocation&) = delete;

  // Goes on by one step. False: nothing to do now, because it is ready or another thread grows the
  // arena. Blocks: for one step; besides while registrars of the arena (RDMA devices) register the
  // extent, which has no steps.
  bool step();
  bool ready() const { return result_.has_value(); }
  // Requires: ready(); once. Errors: as Arena::allocate().
  Result<Buffer> take();

  // The part of step() that takes long, if there is some of it to do: pages, by one slice. Another
  // thread may take it while the first calls nothing but present() and populated_bytes().
  bool wants_pages() const;
  bool populate();  // false: there were none

  // Bytes of pages that are there, of those it takes from the system; 0 of 0 if it takes none.
  size_t populated_bytes() const;
  size_t system_bytes() const;
  // Before it is ready: the first bytes of the memory that will be handed out, as far as they have
  // pages. Nobody else has them; they keep what is written to them. Empty: none yet.
  std::span<std::byte> present() const;

 private:
  uint64_t start() const;
  void begin();
  void go_on_small();
  void end();
  void leave_growing();
  void give_up();
  void refuse(Status why);
  class ArenaBlock* take_of_reserve();
  void deliver(ArenaBlock* block);

  ArenaState* arena_;
  size_t bytes_;
  size_t length_ = 0;
  AllocateOptions options_;
  bool charged_ = false;
  std::unique_ptr<GrowingExtent> growing_;
  std::atomic<size_t> populated_{0};  // bytes of growing_ that have pages
  bool is_short_ = false;             // there are no more pages of its kind
  Status failed_;                     // of populate()
  std::optional<Result<Buffer>> result_;
};

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_PENDING_ALLOCATION_H_
