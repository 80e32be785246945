#include <sluice/runtime/population.h>

#include <utility>

namespace sluice {

PendingAllocation* Population::first_pending() {
  while (!pending_.empty() && pending_.front().allocation->ready())
    pending_.erase(pending_.begin());
  return pending_.empty() ? nullptr : pending_.front().allocation;
}

bool Population::step_first() {
  if (first_pending() == nullptr) return false;
  const Pending first = pending_.front();
  const bool did = first.allocation->step();
  if (first.allocation->ready() && first.waiter != nullptr) first.waiter->allocation_ready();
  return did;
}

bool Population::slice() {
  // What leaves first: an allocation may wait for its room.
  if (arena_->freeing_bytes() > 0 && arena_->free_some(kFreeBytes) > 0) return true;
  return step_first();
}

// What takes no long is done here: the tables are this thread's.
size_t Population::with_helper() {
  if (helper_->busy()) return 0;
  const Instant now = sluice::now();
  if (in_vain_ && now - last_ < kBetween) return 0;
  last_ = now;
  in_vain_ = false;
  // If it freed nothing the last time, an allocation goes on in between.
  if (arena_->freeing_bytes() > 0 && std::exchange(freeing_.freed, true)) {
    helper_->begin(freeing_);
    return 0;
  }
  PendingAllocation* first = first_pending();
  if (first != nullptr && first->wants_pages()) {
    pages_.allocation = first;
    helper_->begin(pages_);
    return 0;
  }
  const size_t steps = step_first() ? 1 : 0;
  in_vain_ = steps == 0;
  if (in_vain_) busy_ = !pending_.empty() || arena_->freeing_bytes() > 0;
  return steps;
}

void Population::PagesJob::run(const std::atomic<bool>& stop) noexcept {
  while (!stop.load(std::memory_order_relaxed) && allocation->populate()) {}
}

void Population::FreeingJob::run(const std::atomic<bool>& stop) noexcept {
  freed = false;
  while (!stop.load(std::memory_order_relaxed) && population.arena_->free_some(kFreeBytes) > 0)
    freed = true;
}

// Another thread grows the arena: later again.
void Population::FreeingJob::done() noexcept {
  population.in_vain_ = !freed;
  population.last_ = sluice::now();
}

size_t Population::progress(bool others_busy) {
  if (helper_ != nullptr) return with_helper();
  const Instant start = sluice::now();
  if (others_busy && start - last_ < kBetween) return 0;
  size_t slices = 0;
  Instant now = start;
  do {
    if (!slice()) break;
    ++slices;
    now = sluice::now();
  } while (!others_busy && slices < kMostSlices && now - start < kTurn);
  last_ = now;
  in_vain_ = slices == 0;
  if (in_vain_) busy_ = !pending_.empty() || arena_->freeing_bytes() > 0;
  return slices;
}

Instant Population::next_timeout() const {
  if (!busy_ || (helper_ != nullptr && helper_->busy())) return kNever;
  return in_vain_ ? after(last_, kBetween) : last_;
}

}  // namespace sluice
