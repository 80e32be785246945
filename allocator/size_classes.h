// Sizes that are handed out: eight classes per doubling from 256 bytes. Small runs have
// the size of their class, so that a freed run fits the next request of its kind; large
// ones whole pages, so that little memory is lost.
#ifndef SLUICE_ALLOCATOR_SIZE_CLASSES_H_
#define SLUICE_ALLOCATOR_SIZE_CLASSES_H_

#include <bit>
#include <cstddef>
#include <cstdint>

namespace sluice {

inline constexpr size_t kClassGranule = 256;
inline constexpr int kClassSteps = 8;
// Up to 2^40 bytes: above every arena.
inline constexpr int kClassCount = (40 - 8 + 1) * kClassSteps;
inline constexpr size_t kLargestClassBytes = size_t{1} << 40;

// Smallest class whose runs hold `bytes`. Requires: bytes <= kLargestClassBytes.
constexpr int class_of(size_t bytes) {
  size_t granules = (bytes + kClassGranule - 1) / kClassGranule;
  if (granules <= kClassSteps) return granules == 0 ? 0 : static_cast<int>(granules) - 1;
  // granules - 1 = 1xxx... in binary: the three bits after the first choose the step.
  size_t last = granules - 1;
  int exponent = std::bit_width(last) - 1;  // >= 3
  int step = static_cast<int>((last >> (exponent - 3)) & 7);
  return (exponent - 2) * kClassSteps + step;
}

// Bytes of a run of class `index`.
constexpr size_t class_bytes(int index) {
  if (index < kClassSteps) return (static_cast<size_t>(index) + 1) * kClassGranule;
  int exponent = index / kClassSteps + 2;
  size_t step = static_cast<size_t>(index % kClassSteps);
  return ((size_t{8} + step + 1) << (exponent - 3)) * kClassGranule;
}

// Up to here at most an eighth of a run is lost; above, less than a page.
inline constexpr size_t kSmallBytes = size_t{64} << 10;
inline constexpr size_t kLargeStepBytes = 4096;

// Bytes that a request for `bytes` takes. Requires: bytes <= kLargestClassBytes.
constexpr size_t run_length(size_t bytes) {
  if (bytes <= kSmallBytes) return class_bytes(class_of(bytes));
  return (bytes + kLargeStepBytes - 1) & ~(kLargeStepBytes - 1);
}

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_SIZE_CLASSES_H_
