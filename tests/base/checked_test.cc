#include <sluice/base/checked.h>

#include <catch2/catch.hpp>

#include <limits>
#include <random>

namespace sluice {
namespace {

using Wide = __int128;

// Values where arithmetic goes wrong, and random ones of every magnitude.
template <typename T>
T interesting(std::mt19937_64& random) {
  switch (random() % 6) {
    case 0: return std::numeric_limits<T>::max();
    case 1: return std::numeric_limits<T>::min();
    case 2: return static_cast<T>(random() % 3);
    case 3: return static_cast<T>(std::numeric_limits<T>::max() - static_cast<T>(random() % 3));
    default: return static_cast<T>(random() >> (random() % 64));
  }
}

template <typename T>
void compare_with_wide_arithmetic() {
  std::mt19937_64 random(3);
  auto fits = [](Wide value) {
    return value >= std::numeric_limits<T>::min() && value <= std::numeric_limits<T>::max();
  };
  for (int i = 0; i < 200'000; ++i) {
    T a = interesting<T>(random), b = interesting<T>(random);
    Wide sum = Wide{a} + Wide{b};
    REQUIRE(checked_add(a, b).has_value() == fits(sum));
    if (fits(sum)) REQUIRE(Wide{*checked_add(a, b)} == sum);
    // The product of two 64-bit unsigned values may exceed even 127 bits.
    if constexpr (std::numeric_limits<T>::is_signed || sizeof(T) < 8) {
      Wide product = Wide{a} * Wide{b};
      REQUIRE(checked_multiply(a, b).has_value() == fits(product));
      if (fits(product)) REQUIRE(Wide{*checked_multiply(a, b)} == product);
    } else {
      unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
      bool small = product <= std::numeric_limits<T>::max();
      REQUIRE(checked_multiply(a, b).has_value() == small);
      if (small) REQUIRE(*checked_multiply(a, b) == static_cast<T>(product));
    }
  }
}

TEST_CASE("sums and products equal those of wider integers or are refused") {
  compare_with_wide_arithmetic<int64_t>();
  compare_with_wide_arithmetic<uint64_t>();
  compare_with_wide_arithmetic<int32_t>();
  compare_with_wide_arithmetic<uint32_t>();
}

TEST_CASE("a range fits only if all of it does") {
  std::mt19937_64 random(4);
  for (int i = 0; i < 200'000; ++i) {
    uint64_t offset = interesting<uint64_t>(random), length = interesting<uint64_t>(random),
             size = interesting<uint64_t>(random);
    REQUIRE(range_fits(offset, length, size) == (Wide{offset} + Wide{length} <= Wide{size}));
  }
}

TEST_CASE("rounding up gives the next multiple") {
  STATIC_REQUIRE(round_up(0u, 256u) == 0);
  STATIC_REQUIRE(round_up(1u, 256u) == 256);
  STATIC_REQUIRE(round_up(256u, 256u) == 256);
  STATIC_REQUIRE(round_up(257u, 256u) == 512);
}

}  // namespace
}  // namespace sluice
