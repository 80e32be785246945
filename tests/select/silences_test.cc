#include <sluice/select/silences.h>

#include <catch2/catch.hpp>

namespace sluice::select {
namespace {

using namespace std::chrono_literals;

const Instant kBegin = after(Instant{}, 1h);

TEST_CASE("a silence counts for a minute, and begins anew when it is heard again", "[select]") {
  Silences silences;
  CHECK(silences.last("left", kBegin) == std::nullopt);
  silences.add("left", kBegin);
  CHECK(silences.last("left", after(kBegin, 59s)) == kBegin);
  CHECK(silences.last("right", after(kBegin, 59s)) == std::nullopt);
  CHECK(silences.last("left", after(kBegin, 60s)) == std::nullopt);
  silences.add("left", after(kBegin, 61s));
  CHECK(silences.last("left", after(kBegin, 120s)) == after(kBegin, 61s));
}

TEST_CASE("of too many silences the oldest is forgotten", "[select]") {
  Silences silences;
  auto name = [](size_t i) { return std::to_string(i); };
  for (size_t i = 0; i < Silences::kMost; ++i) silences.add(name(i), after(kBegin, i * 1ms));
  silences.add(name(1), after(kBegin, 1s));  // no new one, but the newest
  CHECK(silences.last("0", after(kBegin, 1s)).has_value());
  CHECK(silences.last("1", after(kBegin, 1s)) == after(kBegin, 1s));
  for (size_t more : {size_t{0}, size_t{1}})
    silences.add(name(Silences::kMost + more), after(kBegin, 1s));
  for (const char* old : {"0", "2"}) CHECK(silences.last(old, after(kBegin, 1s)) == std::nullopt);
  for (size_t i : {size_t{1}, size_t{3}, Silences::kMost, Silences::kMost + 1})
    CHECK(silences.last(name(i), after(kBegin, 1s)).has_value());
}

}  // namespace
}  // namespace sluice::select
