#include <sluice/allocator/buffer.h>

#include <sluice/base/checked.h>
#include <sluice/base/log.h>

namespace sluice {
namespace {

constexpr const char* kOrigin = "allocator/buffer";

Status invalid(const std::string& why) {
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, why);
}

// The program's own memory.
class ForeignStorage final : public Storage {
 public:
  static StorageRef make(void* data, size_t length, void (*done)(void*), void* user,
                         bool writable) {
    auto* storage = new ForeignStorage();
    storage->done_ = done;
    storage->user_ = user;
    storage->reset(
        static_cast<std::byte*>(data), length, StorageKind::kForeign,
        [](Storage* s) noexcept {
          auto* self = static_cast<ForeignStorage*>(s);
          if (self->done_ != nullptr) self->done_(self->user_);
          delete self;
        },
        writable);
    return StorageRef::adopt(storage);
  }

 private:
  void (*done_)(void*) = nullptr;
  void* user_ = nullptr;
};

}  // namespace

void internal::say_wrong_type(DataType elements, size_t asked_bytes, bool asked_float) {
  static LogThrottle throttle;
  throttle.log(LogLevel::kError, "as<T>() with a T of " + std::to_string(asked_bytes) + " bytes" +
                                     (asked_float ? " (floating point)" : " (integer)") +
                                     " on elements of " + elements.to_string() +
                                     " gives nothing; name their type, or take bytes()");
}

Result<Buffer> Buffer::wrap(void* data, size_t length, void (*done)(void* user), void* user) {
  if (data == nullptr && length > 0)
    return invalid("null memory of " + std::to_string(length) + " bytes");
  return Buffer(ForeignStorage::make(data, length, done, user, true),
                TensorDescriptor::bytes(length));
}

Status Buffer::reshape(const TensorDescriptor& descriptor) {
  if (!range_fits(descriptor.byte_offset(), descriptor.span_bytes(), capacity_bytes())) {
    return invalid(descriptor.to_string() + " at offset " +
                   std::to_string(descriptor.byte_offset()) + " does not fit " +
                   std::to_string(capacity_bytes()) + " bytes");
  }
  descriptor_ = descriptor;
  return Status();
}

Tensor Buffer::freeze() && { return Tensor(std::move(storage_), descriptor_); }

Result<Tensor> Tensor::wrap(const void* data, const TensorDescriptor& descriptor,
                            void (*done)(void* user), void* user) {
  if (data == nullptr && descriptor.span_bytes() > 0)
    return invalid("null memory for " + descriptor.to_string());
  uint64_t length = descriptor.byte_offset() + descriptor.span_bytes();
  return Tensor(ForeignStorage::make(const_cast<void*>(data), length, done, user, false),
                descriptor);
}

Result<Tensor> Tensor::slice_bytes(uint64_t offset, uint64_t length) const {
  if (!range_fits(offset, length, size_bytes())) {
    return invalid("slice of " + std::to_string(length) + " bytes at " + std::to_string(offset) +
                   " of a tensor of " + std::to_string(size_bytes()) + " bytes");
  }
  std::array<int64_t, 1> shape = {static_cast<int64_t>(length)};
  std::array<int64_t, 1> stride = {1};
  SLUICE_TRY(TensorDescriptor part,
             TensorDescriptor::strided(shape, stride, uint8, descriptor_.byte_offset() + offset));
  return Tensor(storage_, part);
}

std::optional<Buffer> Tensor::try_thaw() {
  if (!storage_ || !storage_->writable() || !storage_->unique()) return std::nullopt;
  return Buffer(std::move(storage_), descriptor_);
}

}  // namespace sluice
