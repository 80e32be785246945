// Every byte of every golden message, and of the recorded handshake, changed, deleted
// and doubled: refused with a reason or accepted for what it says; never anything else.
#include <catch2/catch.hpp>

#include "tests/wire/golden_file.h"

namespace sluice::wire::test {
namespace {

struct Sample {
  std::string name;
  Bytes bytes;
};

std::vector<Sample> samples() {
  std::vector<Sample> all;
  for (const std::string& path : golden_paths()) {
    for (GoldenVariant& v : read_golden(path))
      all.push_back({path + " " + v.name, std::move(v.bytes)});
  }
  return all;
}

// Judged from a copy of exactly that length, so that a sanitizer sees a read beyond it.
void check(const std::string& what, size_t at, const Bytes& bytes) {
  Bytes exact(bytes.begin(), bytes.end());
  exact.shrink_to_fit();
  std::string problem = judge_stream(exact);
  if (!problem.empty()) FAIL(what << " at byte " << at << ": " << problem);
}

// `step` 1: each byte takes every other value; 13: twenty of them, and every single bit.
void mutate_everywhere(const std::string& name, const Bytes& bytes, int step) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    Bytes changed = bytes;
    for (int mask = 1; mask < 256; ++mask) {
      if (mask % step != 0 && (mask & (mask - 1)) != 0) continue;
      changed[i] = bytes[i] ^ static_cast<std::byte>(mask);
      check(name + " flipped", i, changed);
    }
    Bytes shorter = bytes;
    shorter.erase(shorter.begin() + static_cast<ptrdiff_t>(i));
    check(name + " without", i, shorter);
    Bytes longer = bytes;
    longer.insert(longer.begin() + static_cast<ptrdiff_t>(i), bytes[i]);
    check(name + " doubled", i, longer);
    check(name + " cut", i, Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(i)));
  }
}

TEST_CASE("every byte of every golden message flipped, deleted, doubled and cut",
          "[wire][mutation]") {
  for (const Sample& s : samples()) mutate_everywhere(s.name, s.bytes, 13);
  SUCCEED();
}

TEST_CASE("every byte of a recorded handshake flipped, deleted, doubled and cut",
          "[wire][mutation]") {
  Bytes recorded;
  for (const GoldenVariant& v : read_golden("tests/wire/golden/handshake.txt")) {
    recorded.insert(recorded.end(), v.bytes.begin(), v.bytes.end());
  }
  REQUIRE(judge_stream(recorded).empty());
  mutate_everywhere("handshake", recorded, 1);
}

TEST_CASE("a TLV cut out of or doubled in a golden message with its length corrected",
          "[wire][mutation]") {
  for (const Sample& s : samples()) {
    for (size_t at = 16; at + 8 <= s.bytes.size(); at += 8) {
      for (size_t length = 8; at + length <= s.bytes.size(); length += 8) {
        auto first = s.bytes.begin() + static_cast<ptrdiff_t>(at);
        auto last = first + static_cast<ptrdiff_t>(length);
        for (bool twice : {false, true}) {
          Bytes changed(s.bytes.begin(), twice ? last : first);
          changed.insert(changed.end(), twice ? first : last, s.bytes.end());
          changed[2] = static_cast<std::byte>(changed.size() & 0xff);
          changed[3] = static_cast<std::byte>(changed.size() >> 8);
          check(s.name + (twice ? " run doubled" : " run removed"), at, changed);
        }
      }
    }
  }
  SUCCEED();
}

TEST_CASE("two bytes at a time in every short golden message", "[wire][mutation]") {
  static constexpr std::byte kValues[] = {std::byte{0}, std::byte{1}, std::byte{0x7f},
                                          std::byte{0x80}, std::byte{0xff}};
  for (const Sample& s : samples()) {
    if (s.bytes.size() > 100) continue;
    for (size_t i = 0; i < s.bytes.size(); ++i) {
      for (size_t j = i + 1; j < s.bytes.size(); ++j) {
        Bytes changed = s.bytes;
        for (std::byte a : kValues) {
          changed[i] = a;
          changed[j] = kValues[(i + j) % std::size(kValues)];
          check(s.name + " two bytes", i, changed);
        }
      }
    }
  }
  SUCCEED();
}

}  // namespace
}  // namespace sluice::wire::test
