// Layouts against the 128-bit oracle: base's TensorDescriptor and the layout TLV.
#include <catch2/catch.hpp>

#include <algorithm>

#include "tests/wire/layout_check.h"
#include "tests/wire/layout_oracle.h"
#include "tests/wire/oracle.h"
#include "tests/wire/random_messages.h"

namespace sluice::wire::test {
namespace {

std::string print(const RawLayout& l) {
  std::string text = std::to_string(l.code) + "/" + std::to_string(l.bits) + "x" +
                     std::to_string(l.lanes) + " shape";
  for (auto n : l.shape) text += " " + std::to_string(n);
  text += l.has_strides ? " strides" : " compact";
  for (auto n : l.strides) text += " " + std::to_string(n);
  return text + " offset " + std::to_string(l.byte_offset);
}

// A WANT that carries the layout as its only TLV.
Bytes want_with(const Bytes& value) {
  Want want{};
  Bytes bytes = encode_any(want);
  bytes.push_back(std::byte{0x01});
  bytes.push_back(std::byte{0x80});
  bytes.push_back(static_cast<std::byte>(value.size() & 0xff));
  bytes.push_back(static_cast<std::byte>(value.size() >> 8));
  bytes.insert(bytes.end(), value.begin(), value.end());
  while (bytes.size() % 8 != 0) bytes.push_back(std::byte{0});
  bytes[2] = static_cast<std::byte>(bytes.size() & 0xff);
  bytes[3] = static_cast<std::byte>(bytes.size() >> 8);
  return bytes;
}

void must_be_refused(const RawLayout& l, const std::string& expected) {
  INFO(print(l));
  CHECK_FALSE(meaning_of(l).has_value());
  CHECK(disagreement(l).empty());
  Verdict v = judge(want_with(layout_value(l)));
  CHECK_FALSE(v.accepted);
  CHECK(v.problem == "");
  CHECK_THAT(v.text, Catch::Contains(expected));
}

constexpr int64_t kHuge = INT64_MAX;

TEST_CASE("hostile layouts are refused with the reason", "[wire][layout]") {
  must_be_refused({17, 8, 1, {2}, false, {}, 0}, "unknown dtype");
  must_be_refused({18, 8, 1, {2}, false, {}, 0}, "unknown dtype");
  must_be_refused({255, 255, 1, {2}, false, {}, 0}, "unknown dtype");
  must_be_refused({2, 32, 0, {2}, false, {}, 0}, "unknown dtype");
  must_be_refused({2, 32, 1025, {2}, false, {}, 0}, "unknown dtype");
  must_be_refused({2, 32, 1, {-1}, false, {}, 0}, "dimension 0 is negative: -1");
  must_be_refused({2, 32, 1, {INT64_MIN}, false, {}, 0}, "negative");
  must_be_refused({2, 32, 1, {kHuge}, false, {}, 0}, "2^63 - 1 bytes");
  must_be_refused({1, 8, 1, {kHuge, 2}, false, {}, 0}, "2^63 - 1 elements");
  must_be_refused({1, 8, 1, {1LL << 32, 1LL << 32}, false, {}, 0}, "2^63 - 1 elements");
  must_be_refused({1, 8, 1, {0, kHuge, 2}, false, {}, 0}, "2^63 - 1 elements");
  must_be_refused({2, 32, 1, {2, 2}, true, {0, 1}, 0}, "stride 0 of dimension 0");
  must_be_refused({2, 32, 1, {2, 2}, true, {-2, 1}, 0}, "stride -2");
  must_be_refused({2, 32, 1, {2, 2}, true, {INT64_MIN, 1}, 0}, "not positive");
  must_be_refused({2, 32, 1, {4, 4}, true, {3, 1}, 0}, "overlap");
  must_be_refused({2, 32, 1, {4, 4}, true, {1, 1}, 0}, "overlap");
  must_be_refused({1, 8, 1, {3}, true, {kHuge}, 0}, "2^63 - 1 elements");
  must_be_refused({1, 8, 1, {2}, true, {kHuge}, 0}, "2^63 - 1");
  must_be_refused({2, 64, 1, {2}, true, {1LL << 60}, 0}, "2^63 - 1 bytes");
}

TEST_CASE("a rank above 8 is refused before its dimensions are read", "[wire][layout]") {
  for (size_t rank : {9, 100, 255}) {
    RawLayout l{2, 32, 1, std::vector<int64_t>(rank, 1), false, {}, 0};
    CHECK(disagreement(l).empty());
    Bytes value = layout_value(l);
    value.resize(std::min<size_t>(value.size(), 800));
    Verdict v = judge(want_with(value));
    CHECK_FALSE(v.accepted);
    CHECK_THAT(v.text, Catch::Contains("rank " + std::to_string(rank)));
    // Only 12 bytes are there: still an answer about the rank.
    value.resize(12);
    CHECK_THAT(judge(want_with(value)).text, Catch::Contains("rank " + std::to_string(rank)));
  }
}

TEST_CASE("a dimension of zero makes strides meaningless, not dangerous", "[wire][layout]") {
  RawLayout l{2, 32, 1, {3, 0, 5}, true, {kHuge, kHuge, -7}, 0};
  CHECK(disagreement(l) == "");
  Verdict v = judge(want_with(layout_value(l)));
  CHECK(v.accepted);
  CHECK(v.problem == "");
  CHECK_THAT(v.text, Catch::Contains("shape=3,0,5 strides=5,5,1 span=0"));
}

TEST_CASE("the stride of a dimension of one is ignored", "[wire][layout]") {
  RawLayout l{2, 32, 1, {1, 4}, true, {INT64_MIN, 1}, 0};
  CHECK(disagreement(l) == "");
  CHECK_THAT(judge(want_with(layout_value(l))).text, Catch::Contains("strides=4,1 span=16"));
}

TEST_CASE("the largest layouts that fit are accepted", "[wire][layout]") {
  CHECK(disagreement({1, 8, 1, {kHuge}, false, {}, 0}) == "");
  CHECK(meaning_of({1, 8, 1, {kHuge}, false, {}, 0}).has_value());
  CHECK(disagreement({1, 8, 1, {2}, true, {kHuge - 1}, 0}) == "");
  CHECK(meaning_of({1, 8, 1, {2}, true, {kHuge - 1}, 0}).has_value());
  CHECK_FALSE(meaning_of({1, 8, 1, {2}, true, {kHuge - 1}, 1}).has_value());
  CHECK(disagreement({1, 8, 1, {2}, true, {kHuge - 1}, 1}) == "");
  CHECK(disagreement({1, 8, 1, {2}, true, {1}, ~uint64_t{0}}) == "");
  CHECK(disagreement({1, 8, 1, {0}, true, {1}, ~uint64_t{0}}) == "");
  // A transposed and a padded matrix.
  CHECK(disagreement({2, 32, 1, {3, 5}, true, {1, 3}, 0}) == "");
  CHECK(meaning_of({2, 32, 1, {3, 5}, true, {7, 1}, 0})->span_bytes == (2 * 7 + 5) * 4);
}

TEST_CASE("every dtype word is judged as the table says", "[wire][layout]") {
  for (int code = 0; code < 256; ++code) {
    for (int bits = 0; bits < 256; ++bits) {
      for (uint16_t lanes : {0, 1, 3, 1024, 1025}) {
        RawLayout l{
            static_cast<uint8_t>(code), static_cast<uint8_t>(bits), lanes, {3}, false, {}, 0};
        std::string wrong = disagreement(l);
        if (!wrong.empty()) FAIL(print(l) << ": " << wrong);
      }
    }
  }
  SUCCEED();
}

TEST_CASE("random layouts mean what 128-bit arithmetic says", "[wire][layout]") {
  int accepted = 0;
  constexpr int kSeeds = 60000;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    RandomMessages random(seed);
    RawLayout l = random.hostile_layout();
    std::string wrong = disagreement(l);
    if (!wrong.empty()) FAIL("seed " << seed << " " << print(l) << ": " << wrong);
    if (l.byte_offset != 0 || l.shape.size() > 20) continue;
    Verdict v = judge(want_with(layout_value(l)));
    if (!v.problem.empty()) FAIL("seed " << seed << " " << print(l) << ": " << v.problem);
    if (v.accepted != meaning_of(l).has_value())
      FAIL("seed " << seed << " " << print(l) << ": " << v.text);
    accepted += v.accepted ? 1 : 0;
  }
  // The generator must reach both sides.
  CHECK(accepted > kSeeds / 10);
  CHECK(accepted < kSeeds * 9 / 10);
}

}  // namespace
}  // namespace sluice::wire::test
