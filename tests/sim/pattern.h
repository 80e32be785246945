// Bytes that say which message they belong to and where in it: a swapped, stale or
// misplaced run cannot pass for the right one.
#ifndef SLUICE_TESTS_SIM_PATTERN_H_
#define SLUICE_TESTS_SIM_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "tests/sim/random.h"

namespace sluice::sim {

inline std::byte pattern_byte(uint64_t key, uint64_t at) {
  // One multiplication per byte: cheap enough for a schedule of 20 us.
  uint64_t word = (key * 0x9E3779B97F4A7C15u) ^ ((at + 1) * 0xD6E8FEB86659FD93u);
  return static_cast<std::byte>((word >> 29) ^ (word >> 51));
}

// `offset`: where in the pattern the first byte of `out` is.
inline void fill_pattern(std::span<std::byte> out, uint64_t key, uint64_t offset = 0) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = pattern_byte(key, offset + i);
}
inline bool has_pattern(std::span<const std::byte> bytes, uint64_t key, uint64_t offset = 0) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != pattern_byte(key, offset + i)) return false;
  }
  return true;
}

}  // namespace sluice::sim

#endif  // SLUICE_TESTS_SIM_PATTERN_H_
