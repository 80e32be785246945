#include <catch2/catch.hpp>

#include <cstddef>
#include <vector>

#include <sluice/base/copy.h>

namespace sluice {
namespace {

std::byte pattern(size_t i) { return static_cast<std::byte>(i * 131 + 7); }

TEST_CASE("a copy past the caches writes every byte and none beside it, at any alignment",
          "[copy]") {
  constexpr size_t kMargin = 64;
  for (size_t length : {0, 1, 15, 16, 63, 64, 65, 127, 128, 129, 1000, 4096 + 5}) {
    for (size_t to = 0; to < 64; to += 7) {
      for (size_t from = 0; from < 16; from += 5) {
        std::vector<std::byte> source(from + length),
            destination(kMargin + to + length + kMargin, std::byte{0xEE});
        for (size_t i = 0; i < length; ++i) source[from + i] = pattern(i);
        copy_past_caches(destination.data() + kMargin + to, source.data() + from, length);
        size_t wrong = 0;
        for (size_t i = 0; i < destination.size(); ++i) {
          bool inside = i >= kMargin + to && i < kMargin + to + length;
          wrong += destination[i] != (inside ? pattern(i - kMargin - to) : std::byte{0xEE});
        }
        CHECK(wrong == 0);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
