// The one source of chance in a schedule: a seed gives the same numbers everywhere.
// Knows nothing of what is decided with them.
#ifndef SLUICE_TESTS_SIM_RANDOM_H_
#define SLUICE_TESTS_SIM_RANDOM_H_

#include <cstdint>
#include <initializer_list>

#include <sluice/base/clock.h>

namespace sluice::sim {

// splitmix64 (Steele, Lea, Flood 2014): also good as a hash of a counter.
constexpr uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix(seed)) {}
  uint64_t next() { return mix(state_++); }
  // 0 .. bound - 1. Requires: bound > 0.
  uint64_t below(uint64_t bound) { return next() % bound; }
  uint64_t between(uint64_t low, uint64_t high) { return low + below(high - low + 1); }
  bool percent(uint64_t chance) { return below(100) < chance; }
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(values.size())];
  }
  // Small values as likely as large ones: 0 .. most.
  Duration duration(Duration most) {
    uint64_t bits = below(
        static_cast<uint64_t>(64 - __builtin_clzll(static_cast<uint64_t>(most.count()) | 1)) + 1);
    uint64_t bound = bits == 0 ? 1 : uint64_t{1} << bits;
    return Duration(
        static_cast<int64_t>(next() % bound % (static_cast<uint64_t>(most.count()) + 1)));
  }

 private:
  uint64_t state_;
};

}  // namespace sluice::sim

#endif  // SLUICE_TESTS_SIM_RANDOM_H_
