// NPB's random numbers: x' = 5^13 x mod 2^46, as a number between 0 and 1 (NPB report RNR-94-007,
// section 2.3). 2^46 divides 2^64, so products may wrap.
#pragma once

#include <cstdint>

namespace npb {

inline constexpr uint64_t kMultiplier = 1220703125;
inline constexpr uint64_t kSeed = 314159265;
inline constexpr uint64_t kModulusMask = (uint64_t{1} << 46) - 1;

class Random {
 public:
  explicit Random(uint64_t seed = kSeed) : x_(seed) {}
  double next() {
    x_ = x_ * kMultiplier & kModulusMask;
    return static_cast<double>(x_) * 0x1p-46;
  }
  // As if next() had been called `count` times.
  void skip(uint64_t count) {
    uint64_t power = kMultiplier;
    for (; count > 0; count >>= 1) {
      if ((count & 1) != 0) x_ = x_ * power & kModulusMask;
      power = power * power & kModulusMask;
    }
  }

 private:
  uint64_t x_;
};

}  // namespace npb
