// Payload that differs at every place and with every seed.
#ifndef SLUICE_TESTS_SUPPORT_PATTERN_H_
#define SLUICE_TESTS_SUPPORT_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::test {

void fill(std::span<std::byte> bytes, uint64_t seed);
bool holds(std::span<const std::byte> bytes, uint64_t seed);

}  // namespace sluice::test

#endif  // SLUICE_TESTS_SUPPORT_PATTERN_H_
