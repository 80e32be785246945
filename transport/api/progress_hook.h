// A turn in Context::progress() for what stands above the paths: timers, another event loop.
#ifndef SLUICE_API_PROGRESS_HOOK_H_
#define SLUICE_API_PROGRESS_HOOK_H_

#include <cstddef>

#include <sluice/base/clock.h>

namespace sluice {

class ProgressHook {
 public:
  // Called once in every turn from idle_until() on: bounded work. Returns how much it did (0:
  // nothing).
  virtual size_t progress(Instant now) = 0;
  // When progress() must run at the latest, or kNever.
  virtual Instant next_timeout() = 0;
  // Before this time progress() has nothing to do, and is not called.
  Instant idle_until() const { return idle_until_; }

 protected:
  ~ProgressHook() = default;

  Instant idle_until_{};  // kept by a hook that knows it
};

}  // namespace sluice

#endif  // SLUICE_API_PROGRESS_HOOK_H_
