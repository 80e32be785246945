#include "tests/support/pattern.h"

#include <algorithm>
#include <cstring>

namespace sluice::test {
namespace {

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15u;
  return x ^ (x >> 29);
}

uint64_t word(uint64_t seed, size_t i) { return mix(seed * 0x9E3779B97F4A7C15u + i + 1); }

}  // namespace

void fill(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t value = word(seed, i);
    std::memcpy(bytes.data() + i, &value, std::min<size_t>(8, bytes.size() - i));
  }
}

bool holds(std::span<const std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t value = word(seed, i);
    if (std::memcmp(bytes.data() + i, &value, std::min<size_t>(8, bytes.size() - i)) != 0)
      return false;
  }
  return true;
}

}  // namespace sluice::test
