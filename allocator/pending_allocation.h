// One allocation in steps, for a loop that must not block while the kernel zeroes pages. Programs
// with a Context call start_allocate() (<sluice/api/allocating.h>), which takes the steps for them.
#ifndef SLUICE_ALLOCATOR_PENDING_ALLOCATION_H_
#define SLUICE_ALLOCATOR_PENDING_ALLOCATION_H_

#include <cstddef>
#include <memory>
#include <optional>

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

  // Bytes of pages that are there, of those it takes from the system; 0 of 0 if it takes none.
  size_t populated_bytes() const;
  size_t system_bytes() const;

 private:
  void begin();
  void end();
  void give_up();
  void refuse(Status why);
  void deliver(class ArenaBlock* block);

  ArenaState* arena_;
  size_t bytes_;
  size_t length_ = 0;
  AllocateOptions options_;
  bool charged_ = false;
  std::unique_ptr<GrowingExtent> growing_;
  std::optional<Result<Buffer>> result_;
};

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_PENDING_ALLOCATION_H_
