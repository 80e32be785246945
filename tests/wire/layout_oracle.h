// What a layout must mean, computed in 128-bit integers from docs/wire.md alone. Must
// not use TensorDescriptor or DataType: it judges them.
#ifndef SLUICE_TESTS_WIRE_LAYOUT_ORACLE_H_
#define SLUICE_TESTS_WIRE_LAYOUT_ORACLE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace sluice::wire::test {

struct RawLayout {
  uint8_t code = 2;
  uint8_t bits = 32;
  uint16_t lanes = 1;
  std::vector<int64_t> shape;
  bool has_strides = false;
  std::vector<int64_t> strides;  // as many as dimensions, if has_strides
  uint64_t byte_offset = 0;      // never on the wire
};

struct LayoutMeaning {
  std::vector<int64_t> strides;  // of every dimension, canonical
  bool compact = true;
  uint64_t elements = 0;
  uint64_t size_bytes = 0;
  uint64_t span_bytes = 0;
};

// Nothing: the layout must be refused.
std::optional<LayoutMeaning> meaning_of(const RawLayout& layout);

// Bytes of a layout TLV's value <-> raw. Reading gives nothing if the lengths, the form
// or the reserved words are wrong; it does not judge dtype, shape and strides.
std::vector<std::byte> layout_value(const RawLayout& layout);
std::optional<RawLayout> parse_layout_value(std::span<const std::byte> value);

// Element positions touched, one by one. Requires: few elements, sane strides.
std::vector<uint64_t> touched_elements(const RawLayout& layout);

}  // namespace sluice::wire::test

#endif  // SLUICE_TESTS_WIRE_LAYOUT_ORACLE_H_
