// Steps of an allocation: a look at what is there, an extent without pages, its pages, its entry.
#include <sluice/allocator/pending_allocation.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include <sluice/base/checked.h>

#include "allocator/arena_state.h"

namespace sluice {
namespace {

// Others' pages that an allocation waits for: a sixteenth of what is there, which keeps extents
// few, or one of the first.
uint64_t longest_worth_waiting_for(const ArenaState& arena) {
  return std::max<uint64_t>(round_up(arena.extent_bytes / 16, kExtentGranule),
                            round_up<uint64_t>(arena.options.first_extent_bytes, kExtentGranule));
}

}  // namespace

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

size_t PendingAllocation::populated_bytes() const {
  return growing_ ? populated_.load(std::memory_order_relaxed) : 0;
}
size_t PendingAllocation::system_bytes() const { return growing_ ? growing_->run.length : 0; }

Result<Buffer> PendingAllocation::take() { return std::move(*result_); }

void PendingAllocation::deliver(ArenaBlock* block) {
  growing_.reset();
  result_.emplace(arena_->buffer_of(block, bytes_, options_.quota));
}

// Without a lock that anybody holds for long.
void PendingAllocation::leave_growing() {
  if (!growing_) return;
  std::lock_guard lock(arena_->mutex);
  if (growing_->continued > 0) {
    arena_->free_runs[static_cast<size_t>(growing_->audience)].add(
        growing_->offset - growing_->continued, growing_->continued);
  }
  arena_->leave(growing_->offset, growing_->run);
  growing_.reset();
}

// What it took leaves.
void PendingAllocation::give_up() {
  leave_growing();
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
  const bool populated = populate();
  if (!failed_.ok()) {
    // What was written to the first pages must not be lost.
    ArenaBlock* block = present().empty() ? take_of_reserve() : nullptr;
    if (block == nullptr) {
      refuse(std::exchange(failed_, Status()));
    } else {
      leave_growing();
      deliver(block);
    }
    return true;
  }
  if (wants_pages()) return populated;
  // Whoever holds it may do so for seconds; this comes again.
  std::unique_lock growing(arena_->grow_mutex, std::try_to_lock);
  if (!growing) return populated;
  if (growing_ == nullptr) {
    begin();
  } else if (is_short_) {
    go_on_small();
  } else {
    end();
  }
  return true;
}

bool PendingAllocation::wants_pages() const {
  return growing_ != nullptr && !is_short_ && failed_.ok() &&
         populated_.load(std::memory_order_relaxed) < growing_->run.length;
}

// The run is in no table: that takes no lock.
bool PendingAllocation::populate() {
  if (!wants_pages()) return false;
  PageRun& run = growing_->run;
  const size_t done = populated_.load(std::memory_order_relaxed);
  Result<size_t> reached = arena_->populate(run, done, std::min(kStepBytes, run.length - done));
  failed_ = reached.status();
  if (!reached.ok()) return true;
  is_short_ = *reached == done;
  populated_.store(*reached, std::memory_order_release);
  return true;
}

uint64_t PendingAllocation::start() const {
  const GrowingExtent& g = *growing_;
  return g.continued > 0 ? g.offset - g.continued : g.offset + g.carved;
}

std::span<std::byte> PendingAllocation::present() const {
  if (!growing_) return {};
  const uint64_t begin = start();
  const uint64_t end = growing_->offset + populated_.load(std::memory_order_acquire);
  const uint64_t there = end > begin ? end - begin : 0;
  return {arena_->base + begin, std::min<size_t>(there, bytes_)};
}

// What a receive may use where the arena cannot grow, counted as live; null: nothing.
ArenaBlock* PendingAllocation::take_of_reserve() {
  if (!options_.for_receive || options_.audience != Audience::kSameUser) return nullptr;
  ArenaBlock* block;
  {
    std::lock_guard lock(arena_->mutex);
    block = arena_->take_of_reserve(length_);
  }
  if (block != nullptr) arena_->count_live();
  return block;
}

// Others may have freed what is needed, or take what they free; then once more.
void PendingAllocation::begin() {
  ArenaState& a = *arena_;
  if (ArenaBlock* block = a.take_present(length_, options_)) return deliver(block);
  ArenaState::Need need = a.need_for(length_, options_.audience, true, std::nullopt);
  need.preferred = std::min(need.preferred, longest_worth_waiting_for(a));
  uint64_t length = 0;
  std::optional<uint64_t> offset = a.place(need, &length);
  if (!offset) {
    // Whole extents that are free, of either audience, could serve as one, once they are freed.
    const bool helps = need.reclaimable > 0 && need.most + need.reclaimable >= need.bytes;
    if (helps && (a.free_some(kStepBytes) > 0 || a.start_trim() > 0)) return;
    if (ArenaBlock* block = take_of_reserve()) return deliver(block);
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
    if (ArenaBlock* block = take_of_reserve()) return deliver(block);
    // The system may have enough once it has back what nobody uses.
    if (need.reclaimable > 0 && (a.free_some(kStepBytes) > 0 || a.start_trim() > 0)) return;
    return refuse(run.status());
  }
  growing_ = std::make_unique<GrowingExtent>(GrowingExtent{
      .offset = *offset, .carved = need.carved, .audience = options_.audience, .run = *run});
  a.pending_bytes.fetch_add(length, std::memory_order_relaxed);
  std::lock_guard lock(a.mutex);
  // The free run before it, which it continues, is nobody else's from now on.
  FreeRuns& free = a.free_runs[static_cast<size_t>(options_.audience)];
  const uint64_t continued = length - need.carved < length_ ? length_ + need.carved - length : 0;
  if (continued == 0) return;
  if (free.take_exactly(*offset - continued, continued)) {
    growing_->continued = continued;
  } else {
    // Somebody else took it meanwhile: once more, from what is there now.
    a.leave(growing_->offset, growing_->run);
    growing_.reset();
  }
}

// The run has no more pages of its kind. What it has becomes an extent, of which our part is in use
// from now on; the rest comes from another run.
void PendingAllocation::go_on_small() {
  ArenaState& a = *arena_;
  GrowingExtent& g = *growing_;
  const size_t done = populated_.load(std::memory_order_relaxed);
  const size_t kept = done > g.carved ? done : 0;
  Result<PageRun> rest = a.pages.go_on_small(g.run, kept);
  if (!rest.ok()) return refuse(rest.status());
  is_short_ = false;
  if (kept == 0) {
    g.run = *rest;
    populated_.store(0, std::memory_order_relaxed);
    return;
  }
  Status status = a.pages.end_commit(g.run);
  if (status.ok()) status = a.register_extent(g);
  if (!status.ok()) {
    std::unique_lock lock(a.mutex);
    a.leave(g.offset + kept, *rest);
    lock.unlock();
    return refuse(std::move(status));
  }
  a.pending_bytes.fetch_sub(kept, std::memory_order_relaxed);
  const uint64_t begin = start(), end = g.offset + kept;
  std::lock_guard lock(a.mutex);
  FreeRuns& free = a.free_runs[static_cast<size_t>(g.audience)];
  if (g.continued > 0) free.add(begin, g.continued);
  a.enter_extent(g);
  free.take_exactly(begin, end - begin);
  g = {.offset = end, .continued = end - begin, .audience = g.audience, .run = *rest};
  populated_.store(0, std::memory_order_relaxed);
}

// All pages are there.
void PendingAllocation::end() {
  ArenaState& a = *arena_;
  Status status = a.pages.end_commit(growing_->run);
  if (status.ok()) status = a.register_extent(*growing_);
  if (!status.ok()) return refuse(std::move(status));
  a.pending_bytes.fetch_sub(growing_->run.length, std::memory_order_relaxed);
  ArenaBlock* block;
  {
    std::lock_guard lock(a.mutex);
    const uint64_t begin = start();
    if (growing_->continued > 0)
      a.free_runs[static_cast<size_t>(growing_->audience)].add(begin, growing_->continued);
    a.enter_extent(*growing_);
    block = a.take_at(static_cast<int>(options_.audience), begin, length_);
  }
  a.count_live();
  deliver(block);
}

}  // namespace sluice
