// Steps of an allocation: a look at what is there, an extent without pages, its pages, its entry.
#include <sluice/allocator/pending_allocation.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "allocator/arena_state.h"

namespace sluice {

PendingAllocation::PendingAllocation(ArenaState* arena, size_t bytes,
                                     const AllocateOptions& options)
    : arena_(arena), bytes_(bytes), options_(options) {
  if (arena_->owner.in_forked_child()) {
    refuse(arena_->in_forked_child_status());
  } else if (bytes > arena_->options.limit_bytes) {
    refuse(arena_->refused_by_limit(bytes));
  } else {
    length_ = run_length(bytes);
    charged_ = ArenaState::charge(options_.quota, length_);
    if (!charged_) {
      refuse(arena_->refused_by_quota(bytes, *options_.quota));
    } else if (ArenaBlock* block = arena_->take_present(length_, options_)) {
      deliver(block);
    }
  }
}

PendingAllocation::~PendingAllocation() {
  if (arena_->owner.in_forked_child() || ready()) return;
  give_up();
}

size_t PendingAllocation::populated_bytes() const { return growing_ ? growing_->populated : 0; }
size_t PendingAllocation::system_bytes() const { return growing_ ? growing_->run.length : 0; }

Result<Buffer> PendingAllocation::take() { return std::move(*result_); }

void PendingAllocation::deliver(ArenaBlock* block) {
  growing_.reset();
  result_.emplace(arena_->buffer_of(block, bytes_, options_.quota));
}

// What it took leaves, without a lock that anybody holds for long.
void PendingAllocation::give_up() {
  if (growing_) {
    std::lock_guard lock(arena_->mutex);
    if (growing_->continued > 0) {
      arena_->free_runs[static_cast<size_t>(growing_->audience)].add(
          growing_->offset - growing_->continued, growing_->continued);
    }
    arena_->leave(growing_->offset, growing_->run);
    growing_.reset();
  }
  if (std::exchange(charged_, false)) ArenaState::refund(options_.quota, length_);
}

void PendingAllocation::refuse(Status why) {
  give_up();
  arena_->failures.fetch_add(1, std::memory_order_relaxed);
  result_.emplace(std::move(why));
}

bool PendingAllocation::step() {
  if (ready()) return false;
  if (arena_->owner.in_forked_child()) {
    growing_.reset();  // the parent's
    result_.emplace(arena_->in_forked_child_status());
    return true;
  }
  // Whoever holds it may do so for seconds; this comes again.
  std::unique_lock growing(arena_->grow_mutex, std::try_to_lock);
  if (!growing) return false;
  if (!growing_) {
    begin();
    return true;
  }
  PageRun& run = growing_->run;
  if (growing_->populated < run.length) {
    const size_t step = std::min(kStepBytes, run.length - growing_->populated);
    Result<size_t> reached = arena_->pages.populate(run, growing_->populated, step);
    if (!reached.ok()) {
      refuse(reached.status());
      return true;
    }
    growing_->populated = *reached;
  }
  if (growing_->populated == run.length) end();
  return true;
}

// Others may have freed what is needed, or take what they free; then once more.
void PendingAllocation::begin() {
  ArenaState& a = *arena_;
  if (ArenaBlock* block = a.take_present(length_, options_)) return deliver(block);
  const ArenaState::Need need = a.need_for(length_, options_.audience, true, std::nullopt);
  uint64_t length = 0;
  std::optional<uint64_t> offset = a.place(need, &length);
  if (!offset) {
    // Whole extents that are free, of either audience, could serve as one, once they are freed.
    const bool helps = need.reclaimable > 0 && need.most + need.reclaimable >= need.bytes;
    if (helps && (a.free_some(kStepBytes) > 0 || a.start_trim() > 0)) return;
    if (options_.for_receive && options_.audience == Audience::kSameUser) {
      std::lock_guard lock(a.mutex);
      if (ArenaBlock* block = a.take_of_reserve(length_)) {
        a.count_live();
        return deliver(block);
      }
    }
    return refuse(a.refused_by_limit(bytes_));
  }
  Result<PageRun> run = a.pages.begin_commit(a.base + *offset, length);
  if (!run.ok() && length > need.bytes) {
    // The system is short: with less if that will do.
    a.free_addresses.add(*offset + need.bytes, length - need.bytes);
    length = need.bytes;
    run = a.pages.begin_commit(a.base + *offset, length);
  }
  if (!run.ok()) {
    a.free_addresses.add(*offset, length);
    return refuse(run.status());
  }
  growing_ = std::make_unique<GrowingExtent>(GrowingExtent{
      .offset = *offset, .carved = need.carved, .audience = options_.audience, .run = *run});
  a.pending_bytes.fetch_add(length, std::memory_order_relaxed);
  std::lock_guard lock(a.mutex);
  // The free run before it, which it continues, is nobody else's until then.
  FreeRuns& free = a.free_runs[static_cast<size_t>(options_.audience)];
  const uint64_t continued = length - need.carved < length_ ? length_ + need.carved - length : 0;
  if (continued > 0 && free.take_exactly(*offset - continued, continued))
    growing_->continued = continued;
}

void PendingAllocation::end() {
  ArenaState& a = *arena_;
  Status status = a.pages.end_commit(growing_->run);
  if (status.ok()) status = a.register_extent(*growing_);
  if (!status.ok()) return refuse(std::move(status));
  a.pending_bytes.fetch_sub(growing_->run.length, std::memory_order_relaxed);
  ArenaBlock* block;
  {
    std::lock_guard lock(a.mutex);
    if (growing_->continued > 0) {
      a.free_runs[static_cast<size_t>(growing_->audience)].add(
          growing_->offset - growing_->continued, growing_->continued);
    }
    a.enter_extent(*growing_);
    block = a.take_free(static_cast<int>(options_.audience), length_);
  }
  growing_.reset();
  // Null: the free run before it went to somebody else just when this began.
  if (block == nullptr) return;
  a.count_live();
  deliver(block);
}

}  // namespace sluice
