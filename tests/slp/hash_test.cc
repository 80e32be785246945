// The checksums of SLP against their definitions and published values.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "kernel_compat/slp/slp_base.h"

namespace {

uint32_t crc_by_bits(const std::vector<uint8_t>& data) {
  uint32_t crc = ~0u;
  for (uint8_t byte : data) {
    crc ^= byte;
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

std::vector<uint8_t> counting(size_t bytes) {
  std::vector<uint8_t> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(i * 7 + (i >> 8));
  return data;
}

}  // namespace

TEST_CASE("CRC32C has the values of RFC 3720, B.4", "[slp]") {
  auto crc32c = GENERATE(&slp_crc32c, &slp_crc32c_by_table);
  std::vector<uint8_t> zeros(32, 0), ones(32, 0xff), up(32), down(32);
  for (uint8_t i = 0; i < 32; ++i) up[i] = i, down[i] = static_cast<uint8_t>(31 - i);
  CHECK(crc32c(0, zeros.data(), 32) == 0x8a9136aau);
  CHECK(crc32c(0, ones.data(), 32) == 0x62a8ab43u);
  CHECK(crc32c(0, up.data(), 32) == 0x46dd794eu);
  CHECK(crc32c(0, down.data(), 32) == 0x113fdb5cu);
  CHECK(crc32c(0, "123456789", 9) == 0xe3069283u);
}

TEST_CASE("CRC32C is what its polynomial says, at every length and in parts", "[slp]") {
  auto crc32c = GENERATE(&slp_crc32c, &slp_crc32c_by_table);
  for (size_t bytes = 0; bytes < 300; ++bytes) {
    std::vector<uint8_t> data = counting(bytes);
    uint32_t whole = crc_by_bits(data);
    CHECK(crc32c(0, data.data(), bytes) == whole);
    size_t cut = bytes * 2 / 3;
    CHECK(crc32c(crc32c(0, data.data(), cut), data.data() + cut, bytes - cut) == whole);
  }
  // Each row of the table is used: one byte at each place of eight.
  for (size_t place = 0; place < 8; ++place) {
    for (int value = 0; value < 256; ++value) {
      std::vector<uint8_t> data(8);
      data[place] = static_cast<uint8_t>(value);
      REQUIRE(crc32c(0, data.data(), 8) == crc_by_bits(data));
    }
  }
}

TEST_CASE("SipHash-2-4 has the values of its reference", "[slp]") {
  // Aumasson and Bernstein, "SipHash: a fast short-input PRF", appendix A: the key counts
  // from 0, the input of 15 bytes as well.
  uint8_t key[16], input[64];
  for (uint8_t i = 0; i < 16; ++i) key[i] = i;
  for (uint8_t i = 0; i < 64; ++i) input[i] = i;
  CHECK(slp_siphash(key, input, 15) == 0xa129ca6149be45e5u);
  CHECK(slp_siphash(key, input, 0) ==
        0x726fdb47dd0e0e31u);  // vectors_sip64[0] of the reference code, little-endian
  key[3] ^= 1;
  CHECK(slp_siphash(key, input, 15) != 0xa129ca6149be45e5u);
}
