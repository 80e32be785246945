#include <catch2/catch.hpp>

#include <cstddef>
#include <vector>

#include <sluice/base/streaming_rule.h>

namespace sluice {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Addresses only: nothing is copied.
const std::byte* place(uint64_t i) { return reinterpret_cast<const std::byte*>((i + 1) * kMiB); }

TEST_CASE("a destination used again at once is in the caches, one used long ago is not", "[copy]") {
  StreamingRule rule(4 * kMiB);
  CHECK(rule.past_caches(place(0), kMiB));  // nobody knows it: not there
  for (int i = 0; i < 10; ++i) CHECK_FALSE(rule.past_caches(place(0), kMiB));
  for (uint64_t i = 1; i < 4; ++i) CHECK(rule.past_caches(place(i), kMiB));
  CHECK(rule.past_caches(place(0), kMiB));  // 4 MiB with itself
  CHECK_FALSE(rule.past_caches(place(3), kMiB));
}

TEST_CASE("what is larger than the reach goes past the caches each time", "[copy]") {
  StreamingRule rule(4 * kMiB);
  for (int i = 0; i < 3; ++i) CHECK(rule.past_caches(place(0), 4 * kMiB));
}

TEST_CASE("small copies stay in the caches and drive others out", "[copy]") {
  StreamingRule rule(4 * kMiB);
  (void)rule.past_caches(place(0), kMiB);
  for (int i = 0; i < 4096; ++i) CHECK_FALSE(rule.past_caches(place(1), 1024));
  CHECK(rule.past_caches(place(0), kMiB));
}

TEST_CASE("more destinations than are remembered are long ago", "[copy]") {
  StreamingRule rule(uint64_t{1} << 39);
  for (uint64_t i = 0; i < 128; ++i) CHECK(rule.past_caches(place(i), StreamingRule::kLeastBytes));
  for (uint64_t i = 0; i < 128; ++i)
    CHECK_FALSE(rule.past_caches(place(i), StreamingRule::kLeastBytes));
  CHECK(rule.past_caches(place(128), StreamingRule::kLeastBytes));
  CHECK(rule.past_caches(place(0), StreamingRule::kLeastBytes));
}

TEST_CASE("where copies past the caches are off, all go through them", "[copy]") {
  StreamingRule rule(StreamingRule::kNever);
  for (uint64_t i = 0; i < 200; ++i) CHECK_FALSE(rule.past_caches(place(i), 64 * kMiB));
}

}  // namespace
}  // namespace sluice
