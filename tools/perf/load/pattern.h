// Payload that names where it belongs: each 8-byte word follows from a seed, a step
// and its index, so a byte that is stale, misplaced or flipped is seen. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace sluice::tools {

// A well mixed number out of any (splitmix64's finalizer).
constexpr uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

void fill_pattern(std::span<std::byte> bytes, uint64_t seed, uint64_t step);
// Bytes that differ from what fill_pattern() writes.
uint64_t count_mismatches(std::span<const std::byte> bytes, uint64_t seed, uint64_t step);

// One word of a tensor that changes with each step: where, and to which value. A
// tensor shorter than a word has its first bytes for it.
struct StepWord {
  size_t offset;
  size_t length;
  uint64_t value;

  void write(std::byte* tensor) const { std::memcpy(tensor + offset, &value, length); }
  bool matches(const std::byte* tensor) const {
    uint64_t found = 0;
    std::memcpy(&found, tensor + offset, length);
    return found == value;
  }
};

inline StepWord step_word(uint64_t seed, uint64_t step, size_t tensor_bytes) {
  uint64_t random = mixed(seed ^ (step * 0xd1342543de82ef95));
  if (tensor_bytes < sizeof(uint64_t)) {
    return {0, tensor_bytes, random & ((uint64_t{1} << (tensor_bytes * 8)) - 1)};
  }
  // Scaled by a multiplication: a division would take longer than the hand-over's share.
  uint64_t words = tensor_bytes / sizeof(uint64_t);
  auto index = static_cast<size_t>((static_cast<unsigned __int128>(random) * words) >> 64);
  return {index * sizeof(uint64_t), sizeof(uint64_t), mixed(random)};
}

}  // namespace sluice::tools
