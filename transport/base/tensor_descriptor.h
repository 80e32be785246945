// Shape, strides and element type of a tensor, apart from its memory. The same
// struct describes our tensors and, after validation, a peer's.
#ifndef SLUICE_BASE_TENSOR_DESCRIPTOR_H_
#define SLUICE_BASE_TENSOR_DESCRIPTOR_H_

#include <array>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>

#include <sluice/base/dtype.h>
#include <sluice/base/result.h>

namespace sluice {

// Dimensions a descriptor can hold. Frameworks' kernels stop at 8 or before; the
// descriptor is part of every offer, so room for more would cost all of them.
inline constexpr int kMaxRank = 8;

class TensorDescriptor {
 public:
  // A vector of zero bytes.
  TensorDescriptor() {
    shape_[0] = 0;
    strides_[0] = 1;
  }
  // Every operation and completion has a descriptor, and few have more than four dimensions, so
  // only those in use are copied.
  TensorDescriptor(const TensorDescriptor& other) { copy(other); }
  TensorDescriptor& operator=(const TensorDescriptor& other) {
    if (this != &other) copy(other);
    return *this;
  }

  // Compact, row-major. `shape` in elements per dimension, each >= 0.
  // Errors: kInvalidArgument (rank above kMaxRank, negative extent, unknown
  // dtype, size over 2^63 - 1 bytes).
  static Result<TensorDescriptor> compact(std::span<const int64_t> shape, DataType dtype);

  // As compact(), in place and without a reason: false leaves this one as it was.
  bool assign_compact(std::span<const int64_t> shape, DataType dtype);

  // As above with strides in elements. Negative and overlapping strides are
  // refused: the bytes touched must be the `span_bytes()` that follow the
  // byte offset. Dimensions of extent 0 or 1 have their stride ignored.
  static Result<TensorDescriptor> strided(std::span<const int64_t> shape,
                                          std::span<const int64_t> strides, DataType dtype,
                                          uint64_t byte_offset);

  // `length` bytes as a vector of uint8.
  static TensorDescriptor bytes(uint64_t length);

  // The same shape and strides, from the start of other memory.
  TensorDescriptor at_start() const {
    TensorDescriptor moved(*this);
    moved.byte_offset_ = 0;
    return moved;
  }

  DataType dtype() const { return dtype_; }
  int rank() const { return rank_; }
  std::span<const int64_t> shape() const { return {shape_.data(), rank_}; }
  // In elements; filled also for compact tensors.
  std::span<const int64_t> strides() const { return {strides_.data(), rank_}; }
  // Distance of the first element from the start of the memory, in bytes.
  uint64_t byte_offset() const { return byte_offset_; }
  bool is_compact() const { return compact_; }
  int64_t element_count() const { return element_count_; }
  // Bytes of the elements alone (compact size).
  uint64_t size_bytes() const {
    return static_cast<uint64_t>(element_count_) * dtype_.size_bytes();
  }
  // Bytes from the first to one past the last byte touched; size_bytes() if compact.
  uint64_t span_bytes() const { return span_bytes_; }

  // Same dtype and shape: a destination that can take the other's elements.
  bool same_layout(const TensorDescriptor& other) const;
  bool operator==(const TensorDescriptor& other) const;
  std::string to_string() const;  // "float32[1024,1024]"

 private:
  static constexpr int kUsualRank = 4;

  // Requires: `other` is another one. Of a number of bytes that the compiler knows memcpy is a few
  // instructions, where memmove is a call.
  void copy(const TensorDescriptor& other) {
    dtype_ = other.dtype_;
    rank_ = other.rank_;
    compact_ = other.compact_;
    byte_offset_ = other.byte_offset_;
    span_bytes_ = other.span_bytes_;
    element_count_ = other.element_count_;
    if (rank_ <= kUsualRank) [[likely]] {
      std::memcpy(shape_.data(), other.shape_.data(), kUsualRank * sizeof(int64_t));
      std::memcpy(strides_.data(), other.strides_.data(), kUsualRank * sizeof(int64_t));
    } else {
      shape_ = other.shape_;
      strides_ = other.strides_;
    }
  }

  DataType dtype_{};
  uint8_t rank_ = 1;
  bool compact_ = true;
  uint64_t byte_offset_ = 0;
  uint64_t span_bytes_ = 0;
  int64_t element_count_ = 0;
  // Elements from rank_ on have no value.
  std::array<int64_t, kMaxRank> shape_;
  std::array<int64_t, kMaxRank> strides_;
};

}  // namespace sluice

#endif  // SLUICE_BASE_TENSOR_DESCRIPTOR_H_
