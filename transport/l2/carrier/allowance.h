// How many answers strangers get. Knows nothing of what is answered.
#ifndef SLUICE_L2_CARRIER_ALLOWANCE_H_
#define SLUICE_L2_CARRIER_ALLOWANCE_H_

#include <chrono>
#include <cstdint>

#include <sluice/base/clock.h>

namespace sluice::l2 {

// Ten in 10 ms: more would help a flood.
class Allowance {
 public:
  // False: not now.
  bool take(Instant now) {
    if (now - since_ >= kSpan) {
      since_ = now;
      taken_ = 0;
    }
    return taken_ < kPerSpan && ++taken_ > 0;
  }

 private:
  static constexpr uint32_t kPerSpan = 10;
  static constexpr Duration kSpan = std::chrono::milliseconds(10);
  Instant since_{};
  uint32_t taken_ = 0;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_ALLOWANCE_H_
