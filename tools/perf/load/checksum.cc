#include "tools/perf/load/checksum.h"

#include <array>

namespace sluice::tools {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // of CRC32C, its lowest power first
constexpr size_t kSumBytes = sizeof(uint32_t);

// Row k: the remainder of a byte with k bytes of zeros after it.
using Rows = std::array<std::array<uint32_t, 256>, 8>;

constexpr Rows make_rows() {
  Rows rows{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? kPolynomial : 0);
    rows[0][byte] = rest;
  }
  for (size_t k = 1; k < rows.size(); ++k) {
    for (size_t byte = 0; byte < 256; ++byte)
      rows[k][byte] = (rows[k - 1][byte] >> 8) ^ rows[0][rows[k - 1][byte] & 255];
  }
  return rows;
}

constexpr Rows kRows = make_rows();

uint32_t at(std::span<const std::byte> bytes, size_t i) { return static_cast<uint32_t>(bytes[i]); }

uint32_t sum_of(std::span<const std::byte> message, uint64_t seed, uint64_t step) {
  std::array<std::byte, 2 * sizeof(uint64_t)> due;
  for (size_t i = 0; i < sizeof(uint64_t); ++i) {
    due[i] = static_cast<std::byte>(seed >> (8 * i));
    due[sizeof(uint64_t) + i] = static_cast<std::byte>(step >> (8 * i));
  }
  return crc32c(crc32c(0, due), message.first(message.size() - kSumBytes));
}

}  // namespace

uint32_t crc32c(uint32_t crc, std::span<const std::byte> bytes) {
  crc = ~crc;
  size_t i = 0;
  // Eight bytes at a time: one look-up each, none of which waits for another.
  for (; i + 8 <= bytes.size(); i += 8) {
    uint32_t low = crc ^ (at(bytes, i) | at(bytes, i + 1) << 8 | at(bytes, i + 2) << 16 |
                          at(bytes, i + 3) << 24);
    crc = kRows[7][low & 255] ^ kRows[6][low >> 8 & 255] ^ kRows[5][low >> 16 & 255] ^
          kRows[4][low >> 24] ^ kRows[3][at(bytes, i + 4)] ^ kRows[2][at(bytes, i + 5)] ^
          kRows[1][at(bytes, i + 6)] ^ kRows[0][at(bytes, i + 7)];
  }
  for (; i < bytes.size(); ++i) crc = (crc >> 8) ^ kRows[0][(crc ^ at(bytes, i)) & 255];
  return ~crc;
}

void seal(std::span<std::byte> message, uint64_t seed, uint64_t step) {
  uint32_t sum = sum_of(message, seed, step);
  for (size_t i = 0; i < kSumBytes; ++i)
    message[message.size() - kSumBytes + i] = static_cast<std::byte>(sum >> (8 * i));
}

bool is_intact(std::span<const std::byte> message, uint64_t seed, uint64_t step) {
  uint32_t found = 0;
  for (size_t i = 0; i < kSumBytes; ++i)
    found |= at(message, message.size() - kSumBytes + i) << (8 * i);
  return found == sum_of(message, seed, step);
}

}  // namespace sluice::tools
