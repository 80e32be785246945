// Whose timer is next, however many there are. Knows no protocol.
#ifndef SLUICE_L2_TIMERS_H_
#define SLUICE_L2_TIMERS_H_

#include <cstddef>
#include <vector>

#include <sluice/base/clock.h>

namespace sluice::l2 {

class Connection;

// A connection's timer, kept by the connection. Written by Timers alone.
struct Timer {
  static constexpr size_t kNone = SIZE_MAX;
  Connection* owner = nullptr;
  Instant due = kNever;
  size_t index = kNone;
};

// A binary heap whose members know where they are.
class Timers {
 public:
  // Room for so many timers: set() allocates for more only.
  void reserve(size_t timers) { heap_.reserve(timers); }
  // kNever: it does not run, and may go away. Cost: the logarithm of how many run.
  void set(Timer& timer, Instant due) noexcept;
  Instant next() const { return heap_.empty() ? kNever : heap_.front()->due; }
  // Requires: next() != kNever.
  Timer& first() const { return *heap_.front(); }

 private:
  void put(Timer* timer, size_t index);
  void rise(size_t index);
  void sink(size_t index);

  std::vector<Timer*> heap_;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_TIMERS_H_
