#include "tools/perf/load/pattern.h"

#include <algorithm>

namespace sluice::tools {
namespace {

// One multiplication per word keeps this near the speed of memory.
struct Sequence {
  uint64_t base;
  uint64_t word(uint64_t index) const {
    uint64_t x = (base + index) * 0x9e3779b97f4a7c15;
    return x ^ (x >> 29);
  }
};

Sequence sequence(uint64_t seed, uint64_t step) { return {mixed(seed ^ mixed(step))}; }

}  // namespace

void fill_pattern(std::span<std::byte> bytes, uint64_t seed, uint64_t step) {
  Sequence s = sequence(seed, step);
  size_t words = bytes.size() / sizeof(uint64_t);
  for (size_t i = 0; i < words; ++i) {
    uint64_t word = s.word(i);
    std::memcpy(bytes.data() + i * sizeof(word), &word, sizeof(word));
  }
  uint64_t last = s.word(words);
  if (size_t rest = bytes.size() % sizeof(last); rest > 0)
    std::memcpy(bytes.data() + words * sizeof(last), &last, rest);
}

uint64_t count_mismatches(std::span<const std::byte> bytes, uint64_t seed, uint64_t step) {
  Sequence s = sequence(seed, step);
  uint64_t wrong = 0;
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    uint64_t expected = s.word(at / sizeof(uint64_t));
    uint64_t found = expected;
    size_t length = std::min(sizeof(found), bytes.size() - at);
    std::memcpy(&found, bytes.data() + at, length);
    for (uint64_t difference = expected ^ found; difference != 0; difference >>= 8)
      wrong += (difference & 0xff) != 0 ? 1 : 0;
  }
  return wrong;
}

}  // namespace sluice::tools
