// Arithmetic on sizes that a peer or a file may have chosen: overflow is a value
// the caller must look at, never a wrapped number.
#ifndef SLUICE_BASE_CHECKED_H_
#define SLUICE_BASE_CHECKED_H_

#include <concepts>
#include <cstdint>
#include <optional>

namespace sluice {

template <std::integral T>
constexpr std::optional<T> checked_add(T a, T b) {
  T sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

template <std::integral T>
constexpr std::optional<T> checked_multiply(T a, T b) {
  T product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// True if [offset, offset + length) lies within [0, size).
constexpr bool range_fits(uint64_t offset, uint64_t length, uint64_t size) {
  return offset <= size && length <= size - offset;
}

// Rounds up to a multiple of `step`, a power of two. Requires: no overflow.
template <std::unsigned_integral T>
constexpr T round_up(T value, T step) {
  return (value + step - 1) & ~(step - 1);
}

}  // namespace sluice

#endif  // SLUICE_BASE_CHECKED_H_
