#include "transport/wire/tlv.h"

#include <algorithm>

namespace sluice::wire {
namespace {

constexpr size_t kLayoutBytes = 12;  // before the dimensions

}  // namespace

void put_segment(Writer& w, const Segment& segment) {
  w.begin_tlv(TlvType::kSegment, 20);
  w.put(segment.extent);
  w.put(segment.offset);
  w.put(segment.length);
}

Status take_segment(const char* message, Reader& value, Segment& out) {
  if (value.left() != 20)
    return corrupt(message, "segment of " + std::to_string(value.left()) + " bytes, not 20");
  out.extent = value.get<uint32_t>();
  out.offset = value.get<uint64_t>();
  out.length = value.get<uint64_t>();
  uint64_t end;
  if (out.length == 0 || __builtin_add_overflow(out.offset, out.length, &end)) {
    return corrupt(message, "segment of extent " + std::to_string(out.extent) + " has offset " +
                                std::to_string(out.offset) + " and length " +
                                std::to_string(out.length) +
                                ", must be at least 1 byte and end below 2^64");
  }
  return Status();
}

void put_layout(Writer& w, const TensorDescriptor& layout) {
  size_t words = static_cast<size_t>(layout.rank()) * (layout.is_compact() ? 1 : 2);
  w.begin_tlv(TlvType::kLayout, kLayoutBytes + 8 * words);
  w.put(static_cast<uint8_t>(layout.dtype().code));
  w.put(layout.dtype().bits);
  w.put(layout.dtype().lanes);
  w.put(static_cast<uint8_t>(layout.rank()));
  w.put(static_cast<uint8_t>(layout.is_compact() ? 0 : 1));
  w.put(uint16_t{0});
  w.put(uint32_t{0});
  for (int64_t n : layout.shape()) w.put(n);
  if (!layout.is_compact()) {
    for (int64_t n : layout.strides()) w.put(n);
  }
}

Status take_layout(const char* message, Reader& value, TensorDescriptor& out, bool& seen) {
  if (seen) return corrupt(message, "layout appears 2 times");
  seen = true;
  if (value.left() < kLayoutBytes) {
    return corrupt(message, "layout of " + std::to_string(value.left()) + " bytes, at least 12");
  }
  DataType dtype;
  dtype.code = static_cast<TypeCode>(value.get<uint8_t>());
  dtype.bits = value.get<uint8_t>();
  dtype.lanes = value.get<uint16_t>();
  auto rank = value.get<uint8_t>();
  auto form = value.get<uint8_t>();
  auto zero_6 = value.get<uint16_t>();
  auto zero_8 = value.get<uint32_t>();
  if (zero_6 != 0 || zero_8 != 0) {
    return corrupt(
        message, "layout has reserved words " + hex(zero_6) + " and " + hex(zero_8) + ", not zero");
  }
  if (rank > kMaxRank)
    return corrupt(message, "layout of rank " + std::to_string(rank) + ", at most 8");
  if (form > 1) return corrupt(message, "layout of form " + std::to_string(form) + ", not 0 or 1");
  size_t dimension_bytes = size_t{8} * rank * (1 + form);
  if (value.left() != dimension_bytes) {
    return corrupt(message, "layout of rank " + std::to_string(rank) + " and form " +
                                std::to_string(form) + " has " + std::to_string(value.left()) +
                                " bytes of dimensions, not " + std::to_string(dimension_bytes));
  }
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> strides{};
  for (int i = 0; i < rank; ++i) shape[i] = value.get<int64_t>();
  if (form == 1) {
    for (int i = 0; i < rank; ++i) strides[i] = value.get<int64_t>();
  }
  std::span<const int64_t> extents(shape.data(), rank);
  auto layout = form == 0 ? TensorDescriptor::compact(extents, dtype)
                          : TensorDescriptor::strided(
                                extents, std::span<const int64_t>(strides.data(), rank), dtype, 0);
  if (!layout.ok()) return corrupt(message, "layout: " + std::string(layout.status().detail()));
  out = *layout;
  return Status();
}

}  // namespace sluice::wire
