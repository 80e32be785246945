#include <sluice/base/dtype.h>

#include <catch2/catch.hpp>

#include <map>
#include <set>
#include <string>

namespace sluice {
namespace {

// Widths by code as DLPack 1.1 gives them, written down independently of dtype.cc.
const std::map<int, std::set<int>> kWidths = {
    {0, {4, 8, 16, 32, 64}},
    {1, {4, 8, 16, 32, 64}},
    {2, {16, 32, 64}},
    {3, {8, 16, 32, 64}},
    {4, {16}},
    {5, {64, 128}},
    {6, {8}},
    {7, {8}},
    {8, {8}},
    {9, {8}},
    {10, {8}},
    {11, {8}},
    {12, {8}},
    {13, {8}},
    {14, {8}},
    {15, {6}},
    {16, {6}},
    {17, {4}},
};

TEST_CASE("exactly the codes, widths and lanes of DLPack are valid") {
  for (int code = 0; code < 256; ++code) {
    for (int bits = 0; bits < 256; ++bits) {
      auto widths = kWidths.find(code);
      bool expected = widths != kWidths.end() && widths->second.count(bits) == 1;
      for (int lanes : {0, 1, 2, 1024, 1025, 65535}) {
        DataType type{static_cast<TypeCode>(code), static_cast<uint8_t>(bits),
                      static_cast<uint16_t>(lanes)};
        REQUIRE(type.valid() == (expected && lanes >= 1 && lanes <= 1024));
        REQUIRE(type.size_bytes() ==
                (static_cast<uint32_t>(bits) * static_cast<uint32_t>(lanes) + 7) / 8);
        REQUIRE_FALSE(type.to_string().empty());  // also of what a peer made up
      }
    }
  }
}

TEST_CASE("elements can be read as their own kind and width, as bits, and as bytes") {
  CHECK(can_read_as<float>(float32));
  CHECK(can_read_as<const double>(float64));
  CHECK(can_read_as<float>({TypeCode::kFloat, 32, 4}));
  CHECK(can_read_as<uint16_t>(bfloat16));
  CHECK(can_read_as<uint16_t>(float16));
  CHECK(can_read_as<uint64_t>(complex64));
  CHECK(can_read_as<int64_t>(uint8));
  CHECK(can_read_as<char>(float64));
  CHECK_FALSE(can_read_as<double>(float32));
  CHECK_FALSE(can_read_as<float>(int32));
  CHECK_FALSE(can_read_as<int32_t>(float32));
  CHECK_FALSE(can_read_as<int16_t>(int32));
  CHECK_FALSE(can_read_as<uint32_t>(bfloat16));
  CHECK_FALSE(can_read_as<float>(boolean));
}

TEST_CASE("names are those of the frameworks") {
  CHECK(float32.to_string() == "float32");
  CHECK(bfloat16.to_string() == "bfloat16");
  CHECK(boolean.to_string() == "bool8");
  CHECK(DataType{TypeCode::kInt, 8, 4}.to_string() == "int8x4");
  CHECK(float32.size_bytes() == 4);
  CHECK(complex128.size_bytes() == 16);
  CHECK(DataType{TypeCode::kInt, 4, 3}.size_bytes() == 2);
  CHECK(DataType{} == uint8);
}

}  // namespace
}  // namespace sluice
