// Messages that carry a checksum of themselves (--verify=crc32c): who receives one needs nothing
// but the message, the seed and the step to know that it is whole, and the one that was due. Not
// the checksum of the protocol below: what checks that shares no code with it. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::tools {

// CRC32C (Castagnoli; RFC 3720, B.4), continued from `crc`; 0 to begin.
uint32_t crc32c(uint32_t crc, std::span<const std::byte> bytes);

// Shorter ones carry none.
inline constexpr uint64_t kLeastSealedBytes = 8;

// Puts the CRC32C of seed, step and all other bytes into the last four, least significant byte
// first. Requires: kLeastSealedBytes.
void seal(std::span<std::byte> message, uint64_t seed, uint64_t step);
bool is_intact(std::span<const std::byte> message, uint64_t seed, uint64_t step);

}  // namespace sluice::tools
