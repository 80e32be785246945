// When a caller that a listener had no room for calls it again. Knows no path.
#ifndef SLUICE_RUNTIME_CALL_PAUSES_H_
#define SLUICE_RUNTIME_CALL_PAUSES_H_

#include <algorithm>
#include <chrono>

#include <sluice/base/clock.h>

namespace sluice {

class CallPauses {
 public:
  // After 5 to 10 ms, then after twice as long each time, 320 to 640 ms at last. How much longer is
  // by the clock's last digits, so that callers who came together do not come together again.
  Instant next(Instant now) {
    const Instant again = after(now, pause_ + now.time_since_epoch() % pause_);
    pause_ = std::min(pause_ * 2, kLongest);
    return again;
  }

 private:
  static constexpr Duration kLongest = std::chrono::milliseconds(320);
  Duration pause_ = std::chrono::milliseconds(5);
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_CALL_PAUSES_H_
