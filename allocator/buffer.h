// Buffer: unique and writable. freeze() turns it into a Tensor: shared and
// immutable. Neither knows how it will travel.
#ifndef SLUICE_ALLOCATOR_BUFFER_H_
#define SLUICE_ALLOCATOR_BUFFER_H_

#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include <sluice/allocator/storage.h>
#include <sluice/base/dtype.h>
#include <sluice/base/tensor_descriptor.h>

namespace sluice {

class Tensor;

namespace internal {
// One line in the log, not more often than every 10 s.
void say_wrong_type(DataType elements, size_t asked_bytes, bool asked_float);
}  // namespace internal

// Movable, not copyable. Ownership: the bytes go back to where they came from when
// the Buffer ends. Thread: may be moved between threads; no two at once.
class Buffer {
 public:
  Buffer() = default;
  // Requires: descriptor.byte_offset() + descriptor.span_bytes() <= storage->size().
  Buffer(StorageRef storage, const TensorDescriptor& descriptor)
      : storage_(std::move(storage)), descriptor_(descriptor) {}
  // An empty one has no descriptor worth copying.
  Buffer(Buffer&& other) noexcept : storage_(std::move(other.storage_)) {
    if (storage_) descriptor_ = other.descriptor_;
  }
  Buffer& operator=(Buffer&& other) noexcept {
    storage_ = std::move(other.storage_);
    if (storage_) descriptor_ = other.descriptor_;
    return *this;
  }

  // The program's own memory, lent until `done` is called (on the thread that
  // ends the last use). It has no arena, so paths that need one copy it first.
  // Ownership: the caller keeps `data` alive until `done(user)` ran.
  // Errors: kInvalidArgument (null data with length > 0).
  static Result<Buffer> wrap(void* data, size_t length, void (*done)(void* user), void* user);

  explicit operator bool() const { return static_cast<bool>(storage_); }
  const TensorDescriptor& descriptor() const { return descriptor_; }
  std::byte* data() const {
    return storage_ ? storage_->data() + descriptor_.byte_offset() : nullptr;
  }
  size_t size_bytes() const { return descriptor_.span_bytes(); }
  std::span<std::byte> bytes() const { return {data(), size_bytes()}; }
  // The elements as T; empty, with a line in the log, if they are of another type (can_read_as).
  template <typename T>
  std::span<T> as() const {
    if (!can_read_as<T>(descriptor_.dtype())) [[unlikely]] {
      internal::say_wrong_type(descriptor_.dtype(), sizeof(T), std::is_floating_point_v<T>);
      return {};
    }
    return {reinterpret_cast<T*>(data()), size_bytes() / sizeof(T)};
  }
  // Bytes the memory behind it really has: at least size_bytes().
  size_t capacity_bytes() const { return storage_ ? storage_->size() : 0; }
  const StorageRef& storage() const { return storage_; }
  // data() is a device's address, and bytes() is not for the processor (device_memory.h).
  bool in_device_memory() const { return storage_ && storage_->kind() == StorageKind::kDevice; }

  // Another shape over the same memory.
  // Errors: kInvalidArgument (does not fit capacity_bytes()); *this is unchanged.
  Status reshape(const TensorDescriptor& descriptor);

  // Ends writing. The Buffer is empty afterwards.
  Tensor freeze() &&;

 private:
  StorageRef storage_;
  TensorDescriptor descriptor_;
};

// Shared and immutable: copies share the bytes. Thread: any thread may hold, read
// and drop one, also after its Context closed.
class Tensor {
 public:
  Tensor() = default;
  Tensor(const Tensor& other) = default;
  Tensor& operator=(const Tensor& other) = default;
  Tensor(Tensor&& other) noexcept : storage_(std::move(other.storage_)) {
    if (storage_) descriptor_ = other.descriptor_;
  }
  Tensor& operator=(Tensor&& other) noexcept {
    storage_ = std::move(other.storage_);
    if (storage_) descriptor_ = other.descriptor_;
    return *this;
  }
  Tensor(StorageRef storage, const TensorDescriptor& descriptor)
      : storage_(std::move(storage)), descriptor_(descriptor) {}

  // Read-only memory of the program, lent until `done(user)` is called.
  static Result<Tensor> wrap(const void* data, const TensorDescriptor& descriptor,
                             void (*done)(void* user), void* user);

  explicit operator bool() const { return static_cast<bool>(storage_); }
  const TensorDescriptor& descriptor() const { return descriptor_; }
  const std::byte* data() const {
    return storage_ ? storage_->data() + descriptor_.byte_offset() : nullptr;
  }
  size_t size_bytes() const { return descriptor_.span_bytes(); }
  std::span<const std::byte> bytes() const { return {data(), size_bytes()}; }
  // As Buffer::as().
  template <typename T>
  std::span<const T> as() const {
    if (!can_read_as<T>(descriptor_.dtype())) [[unlikely]] {
      internal::say_wrong_type(descriptor_.dtype(), sizeof(T), std::is_floating_point_v<T>);
      return {};
    }
    return {reinterpret_cast<const T*>(data()), size_bytes() / sizeof(T)};
  }
  const StorageRef& storage() const { return storage_; }
  // A peer's tensor is only as immutable as its owner: copy it (acquire_stable of
  // the exchange) before checking and then using a value that must not change.
  bool owned_by_peer() const { return storage_ && storage_->kind() == StorageKind::kPeer; }
  // As Buffer::in_device_memory().
  bool in_device_memory() const { return storage_ && storage_->kind() == StorageKind::kDevice; }

  // `length` bytes from `offset` as a vector of uint8, sharing the memory.
  // Errors: kInvalidArgument (outside the tensor).
  Result<Tensor> slice_bytes(uint64_t offset, uint64_t length) const;

  // The writable buffer back, without a copy, when this is the last holder of arena,
  // device or foreign-writable memory: in-place updates each step. Otherwise nullopt and
  // the tensor is unchanged: progress until receivers have released it.
  std::optional<Buffer> try_thaw();

 private:
  StorageRef storage_;
  TensorDescriptor descriptor_;
};

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_BUFFER_H_
