#include <sluice/base/tensor_descriptor.h>

#include <algorithm>
#include <limits>
#include <optional>

#include <sluice/base/checked.h>

namespace sluice {
namespace {

constexpr const char* kOrigin = "base/tensor_descriptor";

Status invalid(std::string detail) {
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, std::move(detail));
}

// Elements of the shape. The size in bytes is representable, too. Nothing: why_uncountable().
std::optional<int64_t> count_elements(std::span<const int64_t> shape, DataType dtype) {
  if (shape.size() > kMaxRank || !dtype.valid()) return std::nullopt;
  int64_t count = 1, bytes;
  bool empty = false;
  for (int64_t extent : shape) {
    // A zero anywhere makes the tensor empty, but the others must still be
    // representable: a framework multiplies them again.
    if (extent < 0 || __builtin_mul_overflow(count, std::max<int64_t>(extent, 1), &count))
      return std::nullopt;
    empty = empty || extent == 0;
  }
  if (__builtin_mul_overflow(count, int64_t{dtype.size_bytes()}, &bytes)) return std::nullopt;
  return empty ? 0 : count;
}

// Apart from count_elements(): each offer of a tensor is counted, and texts take registers.
[[gnu::cold, gnu::noinline]] Status why_uncountable(std::span<const int64_t> shape,
                                                    DataType dtype) {
  if (shape.size() > kMaxRank) {
    return invalid("rank " + std::to_string(shape.size()) + " is above the limit of " +
                   std::to_string(kMaxRank) + "; merge dimensions");
  }
  if (!dtype.valid()) return invalid("unknown dtype " + dtype.to_string());
  int64_t count = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 0)
      return invalid("dimension " + std::to_string(i) +
                     " is negative: " + std::to_string(shape[i]));
    if (__builtin_mul_overflow(count, std::max<int64_t>(shape[i], 1), &count))
      return invalid("shape has more than 2^63 - 1 elements");
  }
  return invalid("tensor is larger than 2^63 - 1 bytes");
}

}  // namespace

Result<TensorDescriptor> TensorDescriptor::compact(std::span<const int64_t> shape, DataType dtype) {
  TensorDescriptor d;
  if (!d.assign_compact(shape, dtype)) return why_uncountable(shape, dtype);
  return d;
}

bool TensorDescriptor::assign_compact(std::span<const int64_t> shape, DataType dtype) {
  const std::optional<int64_t> count = count_elements(shape, dtype);
  if (!count) return false;
  dtype_ = dtype;
  rank_ = static_cast<uint8_t>(shape.size());
  compact_ = true;
  byte_offset_ = 0;
  element_count_ = *count;
  int64_t stride = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    shape_[i] = shape[i];
    strides_[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  span_bytes_ = size_bytes();
  return true;
}

Result<TensorDescriptor> TensorDescriptor::strided(std::span<const int64_t> shape,
                                                   std::span<const int64_t> strides, DataType dtype,
                                                   uint64_t byte_offset) {
  if (strides.size() != shape.size()) {
    return invalid(std::to_string(strides.size()) + " strides for " + std::to_string(shape.size()) +
                   " dimensions");
  }
  SLUICE_TRY(TensorDescriptor d, compact(shape, dtype));
  d.byte_offset_ = byte_offset;
  if (d.element_count_ == 0) {
    if (byte_offset > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return invalid("byte offset overflows");
    return d;
  }
  // Dimensions that move, by growing stride: each must step over all that the
  // smaller ones touch, else two indices would share an element.
  std::array<int, kMaxRank> order{};
  int moving = 0;
  for (int i = 0; i < d.rank_; ++i) {
    if (d.shape_[i] <= 1) continue;
    if (strides[i] <= 0) {
      return invalid("stride " + std::to_string(strides[i]) + " of dimension " + std::to_string(i) +
                     " is not positive; negative and broadcast strides are not supported");
    }
    // Inserted in place: kMaxRank is small, and gcc 12 at -O2 takes std::sort's
    // branch for more than 16 elements for an access out of bounds.
    int at = moving++;
    for (; at > 0 && strides[order[at - 1]] > strides[i]; --at) order[at] = order[at - 1];
    order[at] = i;
  }
  int64_t extent = 1;  // elements from the first to one past the last touched so far
  for (int k = 0; k < moving; ++k) {
    int i = order[k];
    if (strides[i] < extent) {
      return invalid("strides overlap at dimension " + std::to_string(i));
    }
    auto reach = checked_multiply(strides[i], d.shape_[i] - 1);
    auto sum = reach ? checked_add(*reach, extent) : std::nullopt;
    if (!sum) return invalid("strides reach beyond 2^63 - 1 elements");
    extent = *sum;
    if (strides[i] != d.strides_[i]) d.compact_ = false;
    d.strides_[i] = strides[i];
  }
  auto span = checked_multiply(static_cast<uint64_t>(extent), uint64_t{dtype.size_bytes()});
  auto end = span ? checked_add(*span, byte_offset) : std::nullopt;
  if (!end || *end > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return invalid("byte offset and strides reach beyond 2^63 - 1 bytes");
  }
  d.span_bytes_ = *span;
  return d;
}

TensorDescriptor TensorDescriptor::bytes(uint64_t length) {
  TensorDescriptor d;
  d.dtype_ = uint8;
  d.rank_ = 1;
  d.shape_[0] = static_cast<int64_t>(length);
  d.strides_[0] = 1;
  d.element_count_ = static_cast<int64_t>(length);
  d.span_bytes_ = length;
  return d;
}

bool TensorDescriptor::same_layout(const TensorDescriptor& other) const {
  return dtype_ == other.dtype_ && rank_ == other.rank_ &&
         std::ranges::equal(shape(), other.shape());
}

bool TensorDescriptor::operator==(const TensorDescriptor& other) const {
  return same_layout(other) && byte_offset_ == other.byte_offset_ &&
         std::ranges::equal(strides(), other.strides());
}

std::string TensorDescriptor::to_string() const {
  std::string text = dtype_.to_string() + "[";
  for (int i = 0; i < rank_; ++i) {
    if (i > 0) text += ",";
    text += std::to_string(shape_[i]);
  }
  text += "]";
  return text;
}

}  // namespace sluice
