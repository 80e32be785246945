#include <sluice/runtime/population.h>

namespace sluice {

bool Population::slice() {
  // What leaves first: an allocation may wait for its room.
  if (arena_->freeing_bytes() > 0 && arena_->free_some(kFreeBytes) > 0) return true;
  while (!pending_.empty() && pending_.front().allocation->ready())
    pending_.erase(pending_.begin());
  if (pending_.empty()) return false;
  const Pending first = pending_.front();
  const bool did = first.allocation->step();
  if (first.allocation->ready() && first.waiter != nullptr) first.waiter->allocation_ready();
  return did;
}

size_t Population::progress(bool others_busy) {
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
  if (!busy_) return kNever;
  return in_vain_ ? after(last_, kBetween) : last_;
}

}  // namespace sluice
