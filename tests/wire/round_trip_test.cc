// Any well-formed message survives encode and decode, and its encoding is canonical.
#include <catch2/catch.hpp>

#include "tests/wire/oracle.h"
#include "tests/wire/random_messages.h"

namespace sluice::wire::test {
namespace {

constexpr uint64_t kSeeds = 20000;

TEST_CASE("every well-formed message decodes to what was encoded", "[wire]") {
  for (int type = 1; type < kMessageTypeCount; ++type) {
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      RandomMessages random(seed * 16 + static_cast<uint64_t>(type));
      AnyMessage message = random.next(static_cast<MessageType>(type));
      Bytes bytes = encode_any(message);
      Verdict v = judge(bytes);
      if (!v.accepted || !v.problem.empty() || v.text != describe(message) ||
          v.header_bytes != bytes.size()) {
        FAIL("seed " << seed << " type " << type << ": " << v.problem << "\ndecoded " << v.text
                     << "\nsent " << describe(message) << "\nbytes " << to_hex(bytes));
      }
    }
  }
  SUCCEED();
}

TEST_CASE("the longest of every message fits the longest header", "[wire]") {
  Offer offer{};
  offer.about = SupplyOffer{};
  std::vector<int64_t> shape(kMaxRank, 2), strides{1 << 14, 1 << 12, 1 << 10, 1 << 8, 64, 16, 4, 2};
  offer.layout = *TensorDescriptor::strided(shape, strides, float32, 0);
  offer.has_layout = true;
  offer.total = offer.layout.span_bytes();
  offer.segment_count = kMaxSegments;
  for (Segment& s : offer.segments) s = {0xffffffff, uint64_t{1} << 62, 1};
  offer.segments[0].length = offer.total - (kMaxSegments - 1);
  CHECK(encode_any(offer).size() == 48 + 16 * 24 + 16 + 8 * 16);
  CHECK(judge(encode_any(offer)).accepted);

  Want want;
  std::string key(kMaxKeyBytes, 'k');
  want.key = key;
  want.has_layout = true;
  want.layout = offer.layout;
  CHECK(encode_any(want).size() == 48 + 16 + 8 * 16 + 264);
  CHECK(judge(encode_any(want)).accepted);
  std::array<uint64_t, kMaxStepsOfWant - 1> ids;
  ids.fill(~uint64_t{0});
  Want steps = want;
  steps.following = IdList(ids);
  CHECK(encode_any(steps).size() == 48 + 16 + 8 * 16 + 264 + 256);
  CHECK(judge(encode_any(steps)).accepted);
  want.into = true;
  want.segment_count = kMaxSegments;
  for (Segment& s : want.segments) s = {0xffffffff, 1, ~uint64_t{0} - 1};
  CHECK(encode_any(want).size() == 48 + 16 + 8 * 16 + 264 + 16 * 24);
  CHECK(judge(encode_any(want)).accepted);

  Release release{};
  release.count = kMaxReleases;
  release.ids.fill(~uint64_t{0});
  CHECK(encode_any(release).size() == 16 + 8 * 32);
}

TEST_CASE("a version that both speak is found, or both ranges are named", "[wire]") {
  auto speaks = [](uint16_t low, uint16_t high) {
    Hello h;
    h.min_version = low;
    h.max_version = high;
    return h;
  };
  CHECK(*negotiate(speaks(1, 1), speaks(1, 1)) == 1);
  CHECK(*negotiate(speaks(1, 3), speaks(2, 9)) == 3);
  CHECK(*negotiate(speaks(2, 9), speaks(1, 3)) == 3);
  auto refused = negotiate(speaks(1, 1), speaks(2, 4));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.code() == Code::kUnsupported);
  CHECK(std::string(refused.status().detail()).find("1..1") != std::string::npos);
  CHECK(std::string(refused.status().detail()).find("2..4") != std::string::npos);
}

}  // namespace
}  // namespace sluice::wire::test
