// Lets other threads use a context while one of them sleeps in Context::wait().
#ifndef SLUICE_API_WAIT_GATE_H_
#define SLUICE_API_WAIT_GATE_H_

#include <sluice/base/clock.h>

namespace sluice {

class WaitGate {
 public:
  // Others may enter from now on. Without an event the sleep ends at `until`; whoever makes that
  // too late wakes it.
  virtual void leave(Instant until) = 0;
  // Blocks until nobody else is inside.
  virtual void enter() = 0;

 protected:
  ~WaitGate() = default;
};

}  // namespace sluice

#endif  // SLUICE_API_WAIT_GATE_H_
