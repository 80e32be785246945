// TensorDescriptor against 128-bit arithmetic. Input: byte offset u64, then the value of
// a layout TLV; the rank is taken from what is there.
#include <cstring>

#include "tests/fuzz/target.h"
#include "tests/wire/layout_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice::wire::test;
  if (size < 14) return 0;
  RawLayout layout;
  std::memcpy(&layout.byte_offset, data, 8);
  layout.code = data[8];
  layout.bits = data[9];
  layout.lanes = static_cast<uint16_t>(data[10] | data[11] << 8);
  layout.has_strides = (data[13] & 1) != 0;
  if (!layout.has_strides) layout.byte_offset = 0;  // compact layouts have none
  size_t words = (size - 14) / 8;
  size_t rank = layout.has_strides ? words / 2 : words;
  layout.shape.resize(rank);
  if (rank > 0) std::memcpy(layout.shape.data(), data + 14, 8 * rank);
  if (layout.has_strides) {
    layout.strides.resize(rank);
    if (rank > 0) std::memcpy(layout.strides.data(), data + 14 + 8 * rank, 8 * rank);
  }
  // Narrow dimensions, or nearly every product overflows.
  for (int64_t& n : layout.shape) n = (data[12] & 1) != 0 ? n & 0xff : n;
  sluice::fuzz::require_no(disagreement(layout));
  return 0;
}
