// The payload that every bare program moves: each 32-bit word follows from its
// index and a seed, so that a wrong, stale, shifted or missing word is seen.
// Pure; knows nothing of how the bytes travel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace bare {

// 2^32 divided by the golden ratio, odd: neighbouring words differ in many bits.
inline constexpr uint32_t kWordStride = 2654435761u;

inline uint32_t pattern_word(size_t index, uint32_t seed) {
  return static_cast<uint32_t>(index) * kWordStride + seed * 40503u + 1u;
}

// Fills `bytes` (a tail shorter than a word is left zero by the caller's mapping).
inline void fill_pattern(void* data, size_t bytes, uint32_t seed) {
  auto* words = static_cast<uint32_t*>(data);
  const size_t count = bytes / sizeof(uint32_t);
  for (size_t i = 0; i < count; ++i) words[i] = pattern_word(i, seed);
}

// Number of words that differ from the pattern.
inline uint64_t count_mismatches(const void* data, size_t bytes, uint32_t seed) {
  const auto* words = static_cast<const uint32_t*>(data);
  const size_t count = bytes / sizeof(uint32_t);
  uint64_t wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += words[i] != pattern_word(i, seed) ? 1 : 0;
  return wrong;
}

// Flips one bit in the middle: what `--corrupt` does to see verification notice.
inline void flip_one_bit(void* data, size_t bytes) {
  static_cast<unsigned char*>(data)[bytes / 2] ^= 0x10;
}

}  // namespace bare
