#include <sluice/l2/timers.h>

namespace sluice::l2 {

void Timers::put(Timer* timer, size_t index) {
  heap_[index] = timer;
  timer->index = index;
}

void Timers::rise(size_t index) {
  Timer* moving = heap_[index];
  for (; index > 0 && moving->due < heap_[(index - 1) / 2]->due; index = (index - 1) / 2)
    put(heap_[(index - 1) / 2], index);
  put(moving, index);
}

void Timers::sink(size_t index) {
  Timer* moving = heap_[index];
  while (true) {
    size_t child = 2 * index + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1]->due < heap_[child]->due) ++child;
    if (heap_[child]->due >= moving->due) break;
    put(heap_[child], index);
    index = child;
  }
  put(moving, index);
}

void Timers::set(Timer& timer, Instant due) noexcept {
  if (due == timer.due) return;
  timer.due = due;
  if (timer.index == Timer::kNone) {
    heap_.push_back(&timer);
    return rise(heap_.size() - 1);
  }
  if (due != kNever) {
    rise(timer.index);
    return sink(timer.index);
  }
  // The last one takes its place.
  size_t index = timer.index;
  timer.index = Timer::kNone;
  Timer* last = heap_.back();
  heap_.pop_back();
  if (last == &timer) return;
  put(last, index);
  rise(index);
  sink(last->index);
}

}  // namespace sluice::l2
