// Wakes a context that sleeps for less than a millisecond, which epoll cannot count. Knows
// nothing of what is due.
#ifndef SLUICE_L2_SLEEP_TIMER_H_
#define SLUICE_L2_SLEEP_TIMER_H_

#include <sluice/base/descriptor.h>
#include <sluice/runtime/context_core.h>

namespace sluice::l2 {

class SleepTimer final : public EventHandler {
 public:
  explicit SleepTimer(ContextCore& context) : context_(context) {}
  ~SleepTimer() { close(); }
  // The context's descriptor is readable at `when`, or before. False: no timer is to be had.
  // Cost: a system call where the one that is set is later, or over.
  bool arm(Instant when, Instant now);
  void close();

 private:
  void on_event(uint32_t epoll_events) noexcept override;

  ContextCore& context_;
  Descriptor fd_;
  Instant armed_ = kNever;  // kNever: not
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_SLEEP_TIMER_H_
