// A turn in Context::progress() for what stands above the paths: timers, another event loop.
#ifndef SLUICE_API_PROGRESS_HOOK_H_
#define SLUICE_API_PROGRESS_HOOK_H_

#include <cstddef>

#include <sluice/base/clock.h>

namespace sluice {

class ProgressHook {
 public:
  // Called once in every turn: bounded work. Returns how much it did (0: nothing).
  virtual size_t progress(Instant now) = 0;
  // When progress() must run at the latest, or kNever.
  virtual Instant next_timeout() = 0;

 protected:
  ~ProgressHook() = default;
};

}  // namespace sluice

#endif  // SLUICE_API_PROGRESS_HOOK_H_
