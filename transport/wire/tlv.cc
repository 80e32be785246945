#include "transport/wire/tlv.h"

#include <algorithm>

namespace sluice::wire {

void put_segment(Writer& w, const Segment& segment) {
  w.begin_tlv(TlvType::kSegment, 20);
  w.put(segment.extent);
  w.put(segment.offset);
  w.put(segment.length);
}

Status take_segment(const char* message, Reader& value, Segment& out) {
  out.extent = value.get<uint32_t>();
  out.offset = value.get<uint64_t>();
  out.length = value.get<uint64_t>();
  if (value.failed() || !value.at_end()) return corrupt(message, "segment is not 20 bytes");
  if (out.length == 0) return corrupt(message, "empty segment");
  return Status();
}

void put_layout(Writer& w, const TensorDescriptor& layout) {
  size_t words = static_cast<size_t>(layout.rank()) * (layout.is_compact() ? 1 : 2);
  w.begin_tlv(TlvType::kLayout, 12 + 8 * words);
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
  if (seen) return corrupt(message, "two layouts");
  seen = true;
  DataType dtype;
  dtype.code = static_cast<TypeCode>(value.get<uint8_t>());
  dtype.bits = value.get<uint8_t>();
  dtype.lanes = value.get<uint16_t>();
  auto rank = value.get<uint8_t>();
  auto form = value.get<uint8_t>();
  (void)value.get<uint16_t>();
  (void)value.get<uint32_t>();
  if (rank > kMaxRank) return corrupt(message, "layout of rank " + std::to_string(rank) + ", at most 8");
  if (form > 1) return corrupt(message, "layout of form " + std::to_string(form));
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> strides{};
  for (int i = 0; i < rank; ++i) shape[i] = value.get<int64_t>();
  if (form == 1) {
    for (int i = 0; i < rank; ++i) strides[i] = value.get<int64_t>();
  }
  if (value.failed() || !value.at_end()) return corrupt(message, "layout has the wrong length for its rank");
  std::span<const int64_t> extents(shape.data(), rank);
  auto layout = form == 0 ? TensorDescriptor::compact(extents, dtype)
                          : TensorDescriptor::strided(extents, std::span<const int64_t>(strides.data(), rank), dtype, 0);
  if (!layout.ok()) return corrupt(message, "layout: " + std::string(layout.status().detail()));
  out = *layout;
  return Status();
}

}  // namespace sluice::wire
