#include <catch2/catch.hpp>

#include <vector>

#include "tools/perf/load/checksum.h"
#include "tools/perf/load/pattern.h"
#include "tools/perf/flags/plan.h"
#include "tools/perf/flags/size_text.h"

namespace sluice::tools {
namespace {

TEST_CASE("sizes are read with their suffix, and nothing else is", "[size]") {
  CHECK(parse_size("64") == 64);
  CHECK(parse_size("4K") == 4096);
  CHECK(parse_size("4k") == 4096);
  CHECK(parse_size("1M") == uint64_t{1} << 20);
  CHECK(parse_size("1G") == uint64_t{1} << 30);
  CHECK(parse_size("1024G") == kLargestSizeBytes);
  for (const char* bad : {"", "0", "0K", "-1", "K", "4BK", "4 K", "2T", "1.5M", "1025G",
                          "99999999999999999999", "+4"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_size(bad));
  }
}

TEST_CASE("any flipped byte of a pattern is counted, at any length", "[pattern]") {
  for (size_t length : {1, 2, 7, 8, 9, 63, 64, 65, 1000}) {
    std::vector<std::byte> bytes(length);
    fill_pattern(bytes, 5, 9);
    REQUIRE(count_mismatches(bytes, 5, 9) == 0);
    for (size_t at = 0; at < length; ++at) {
      bytes[at] ^= std::byte{1};
      REQUIRE(count_mismatches(bytes, 5, 9) == 1);
      bytes[at] ^= std::byte{1};
    }
  }
}

TEST_CASE("a pattern of another step, another seed or another place does not pass", "[pattern]") {
  std::vector<std::byte> bytes(4096);
  fill_pattern(bytes, 5, 9);
  CHECK(count_mismatches(bytes, 5, 8) > 4000);
  CHECK(count_mismatches(bytes, 6, 9) > 4000);
  CHECK(count_mismatches(std::span(bytes).subspan(8), 5, 9) > 4000);
  std::vector<std::byte> zeroes(4096);
  CHECK(count_mismatches(zeroes, 5, 9) > 4000);
}

TEST_CASE("CRC32C is what RFC 3720 says, of any length and in any parts", "[checksum]") {
  std::vector<std::byte> bytes(32, std::byte{0});
  CHECK(crc32c(0, bytes) == 0x8a9136aa);
  bytes.assign(32, std::byte{0xff});
  CHECK(crc32c(0, bytes) == 0x62a8ab43);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  CHECK(crc32c(0, bytes) == 0x46dd794e);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    CHECK(crc32c(crc32c(0, std::span(bytes).first(cut)), std::span(bytes).subspan(cut)) ==
          0x46dd794e);
  }
}

TEST_CASE(
    "a sealed message is intact until any bit of it changes, and for its own seed and step alone",
    "[checksum]") {
  for (size_t length : {8, 9, 15, 16, 17, 100}) {
    std::vector<std::byte> message(length);
    fill_pattern(message, 5, 9);
    seal(message, 5, 9);
    REQUIRE(is_intact(message, 5, 9));
    CHECK_FALSE(is_intact(message, 5, 10));
    CHECK_FALSE(is_intact(message, 6, 9));
    for (size_t bit = 0; bit < length * 8; ++bit) {
      message[bit / 8] ^= std::byte{1} << (bit % 8);
      REQUIRE_FALSE(is_intact(message, 5, 9));
      message[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    // What nobody wrote, and a message without a checksum.
    CHECK_FALSE(is_intact(std::vector<std::byte>(length), 5, 9));
    fill_pattern(message, 5, 9);
    CHECK_FALSE(is_intact(message, 5, 9));
  }
}

TEST_CASE("the word of a step lies in the tensor, moves, and is found where it was written",
          "[pattern]") {
  for (size_t length : {1, 2, 7, 8, 64, 100'000}) {
    std::vector<std::byte> tensor(length);
    size_t lowest = length, highest = 0;
    for (uint64_t step = 0; step < 1000; ++step) {
      StepWord word = step_word(3, step, length);
      REQUIRE(word.offset + word.length <= length);
      word.write(tensor.data());
      REQUIRE(word.matches(tensor.data()));
      if (length >= 8) REQUIRE_FALSE(step_word(3, step + 1, length).matches(tensor.data()));
      lowest = std::min(lowest, word.offset);
      highest = std::max(highest, word.offset);
    }
    if (length == 100'000) {
      CHECK(lowest < 1000);
      CHECK(highest > 99'000);
    }
  }
}

TEST_CASE("a window never takes more memory than its bound, one operation excepted", "[plan]") {
  const TestKind* bandwidth = find_test("write_bw");
  CHECK(make_load(*bandwidth, 64, 0).depth == 128);
  CHECK(make_load(*bandwidth, 64, 16).depth == 16);
  CHECK(make_load(*bandwidth, uint64_t{64} << 20, 0).depth == 8);
  CHECK(make_load(*bandwidth, uint64_t{4} << 30, 0).depth == 1);
  Load rotating = make_load(*find_test("exchange_lat"), uint64_t{512} << 20, 0);
  CHECK(rotating.tensors >= 8);
  CHECK(memory_needed(rotating) == uint64_t{4} << 30);
  CHECK(find_test("send_la") == nullptr);
}

}  // namespace
}  // namespace sluice::tools
