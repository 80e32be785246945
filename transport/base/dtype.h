// Element types as DLPack names them: a code, bits per element, lanes.
// Source of codes: DLPack 1.1, DLDataTypeCode.
#ifndef SLUICE_BASE_DTYPE_H_
#define SLUICE_BASE_DTYPE_H_

#include <cstdint>
#include <string>
#include <type_traits>

namespace sluice {

enum class TypeCode : uint8_t {
  kInt = 0,
  kUint = 1,
  kFloat = 2,
  kOpaque = 3,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8_e3m4 = 7,
  kFloat8_e4m3 = 8,
  kFloat8_e4m3b11fnuz = 9,
  kFloat8_e4m3fn = 10,
  kFloat8_e4m3fnuz = 11,
  kFloat8_e5m2 = 12,
  kFloat8_e5m2fnuz = 13,
  kFloat8_e8m0fnu = 14,
  kFloat6_e2m3fn = 15,
  kFloat6_e3m2fn = 16,
  kFloat4_e2m1fn = 17,
};

struct DataType {
  TypeCode code = TypeCode::kUint;
  uint8_t bits = 8;
  uint16_t lanes = 1;

  bool operator==(const DataType&) const = default;

  // Bytes of one element: (bits * lanes + 7) / 8, DLPack's rule for sub-byte types.
  constexpr uint32_t size_bytes() const { return (uint32_t{bits} * lanes + 7) / 8; }

  // True for the codes and widths that DLPack defines; lanes 1..1024.
  bool valid() const;
  std::string to_string() const;  // "float32", "int8x4", "bfloat16"
};

inline constexpr DataType int8{TypeCode::kInt, 8, 1};
inline constexpr DataType int16{TypeCode::kInt, 16, 1};
inline constexpr DataType int32{TypeCode::kInt, 32, 1};
inline constexpr DataType int64{TypeCode::kInt, 64, 1};
inline constexpr DataType uint8{TypeCode::kUint, 8, 1};
inline constexpr DataType uint16{TypeCode::kUint, 16, 1};
inline constexpr DataType uint32{TypeCode::kUint, 32, 1};
inline constexpr DataType uint64{TypeCode::kUint, 64, 1};
inline constexpr DataType float16{TypeCode::kFloat, 16, 1};
inline constexpr DataType float32{TypeCode::kFloat, 32, 1};
inline constexpr DataType float64{TypeCode::kFloat, 64, 1};
inline constexpr DataType bfloat16{TypeCode::kBfloat, 16, 1};
inline constexpr DataType complex64{TypeCode::kComplex, 64, 1};
inline constexpr DataType complex128{TypeCode::kComplex, 128, 1};
inline constexpr DataType boolean{TypeCode::kBool, 8, 1};

// Whether elements of `dtype` can be read as T. Bytes (uint8) can be read as anything and anything
// as bytes; unsigned integers of the element's size give its bits; else kind and width must agree.
// Types that are no arithmetic type (a struct, std::complex) are up to the caller.
template <typename T>
constexpr bool can_read_as(DataType dtype) {
  using Element = std::remove_cv_t<T>;
  constexpr uint32_t kBits = sizeof(Element) * 8;
  if (!std::is_arithmetic_v<Element> || kBits == 8 || dtype == uint8) return true;
  if (std::is_unsigned_v<Element>) return dtype.bits == kBits || dtype.size_bytes() * 8 == kBits;
  if (dtype.bits != kBits) return false;
  return dtype.code == (std::is_floating_point_v<Element> ? TypeCode::kFloat : TypeCode::kInt);
}

}  // namespace sluice

#endif  // SLUICE_BASE_DTYPE_H_
