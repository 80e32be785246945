#include <sluice/allocator/dlpack.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include <sluice/allocator/dlpack_abi.h>
#include <sluice/base/checked.h>

namespace sluice {
namespace {

constexpr const char* kOrigin = "allocator/dlpack";
constexpr DLPackVersion kVersion{1, 1};

Status refusal(Code code, const std::string& why) {
  return Status(code, Scope::kOperation, kOrigin, why);
}
Status invalid(const std::string& why) { return refusal(Code::kInvalidArgument, why); }
Status unsupported(const std::string& why) { return refusal(Code::kUnsupported, why); }

template <typename Managed>
constexpr bool kVersioned = std::is_same_v<Managed, DLManagedTensorVersioned>;

// What an export's manager_ctx points to; its deleter ends both.
template <typename Managed>
struct Export {
  Managed managed{};
  StorageRef storage;
  bool read_only = false;
  std::array<int64_t, kMaxRank> shape{}, strides{};

  static void end(Managed* managed) { delete static_cast<Export*>(managed->manager_ctx); }
};

// Whether DLPack and TensorDescriptor mean the same bytes. An element of ours fills whole
// bytes; DLPack's below 8 bits are packed unless the flag `padded` is set, and what the
// flag says about the lanes of a vector is not defined.
bool same_bytes(DataType dtype, bool padded) {
  if (dtype.bits % 8 == 0) return true;
  if (dtype.lanes == 1) return padded;
  return !padded && (uint32_t{dtype.bits} * dtype.lanes) % 8 == 0;
}

// Bytes that the address of an element must be a multiple of: one number of it.
uintptr_t alignment_of(DataType dtype) {
  uintptr_t bytes = dtype.code == TypeCode::kComplex ? dtype.bits / 16 : dtype.bits / 8;
  return std::max<uintptr_t>(bytes, 1);
}

template <typename Managed>
using Handle = std::unique_ptr<Managed, DlpackRelease>;

template <typename Managed>
Result<Handle<Managed>> exported(StorageRef storage, const TensorDescriptor& descriptor,
                                 bool read_only) {
  if (!storage) return invalid("an empty handle has no memory to export");
  if (storage->kind() == StorageKind::kDevice)
    return unsupported("what device its memory is of nobody told; copy it to host memory first");
  DataType dtype = descriptor.dtype();
  bool padded = kVersioned<Managed> && dtype.bits % 8 != 0 && dtype.lanes == 1;
  if (!same_bytes(dtype, padded)) {
    return unsupported("elements of " + dtype.to_string() + " do not fill whole bytes" +
                       (dtype.lanes == 1 ? ", which only the versioned struct can say" : ""));
  }
  auto* record = new Export<Managed>();
  record->storage = std::move(storage);
  record->read_only = read_only;
  std::ranges::copy(descriptor.shape(), record->shape.begin());
  std::ranges::copy(descriptor.strides(), record->strides.begin());
  Managed& managed = record->managed;
  managed.manager_ctx = record;
  managed.deleter = &Export<Managed>::end;
  if constexpr (kVersioned<Managed>) {
    managed.version = kVersion;
    managed.flags = (read_only ? DLPACK_FLAG_BITMASK_READ_ONLY : 0) |
                    (padded ? DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED : 0);
  }
  DLTensor& out = managed.dl_tensor;
  bool empty = descriptor.element_count() == 0;
  out.data = empty ? nullptr : record->storage->data();
  out.byte_offset = empty ? 0 : descriptor.byte_offset();
  out.device = {kDLCPU, 0};
  out.ndim = descriptor.rank();
  out.dtype = {static_cast<uint8_t>(dtype.code), dtype.bits, dtype.lanes};
  out.shape = record->shape.data();
  out.strides = record->strides.data();
  return Handle<Managed>(&managed);
}

template <typename Managed>
Result<Handle<Managed>> exported(Buffer&& buffer) {
  SLUICE_TRY(Handle<Managed> managed,
             exported<Managed>(buffer.storage(), buffer.descriptor(), false));
  buffer = Buffer();  // the export holds the memory now
  return managed;
}

// A producer's tensor, checked: its first element and what lies there.
struct Seen {
  std::byte* first;  // null if there are no elements
  TensorDescriptor descriptor;
};

Result<Seen> checked(const DLTensor& tensor, bool padded) {
  if (tensor.device.device_type != kDLCPU) {
    return unsupported("the tensor is on DLPack device type " +
                       std::to_string(static_cast<int32_t>(tensor.device.device_type)) +
                       "; copy it to the CPU (type 1) first");
  }
  if (tensor.ndim < 0 || tensor.ndim > kMaxRank) {
    return invalid("rank " + std::to_string(tensor.ndim) + " is not within 0 and " +
                   std::to_string(kMaxRank) + "; merge dimensions");
  }
  size_t rank = static_cast<size_t>(tensor.ndim);
  if (rank > 0 && tensor.shape == nullptr)
    return invalid("null shape of rank " + std::to_string(rank));
  DataType dtype{static_cast<TypeCode>(tensor.dtype.code), tensor.dtype.bits, tensor.dtype.lanes};
  std::span<const int64_t> shape(tensor.shape, rank);
  std::span<const int64_t> strides(tensor.strides, tensor.strides == nullptr ? 0 : rank);
  SLUICE_TRY(TensorDescriptor descriptor,
             tensor.strides == nullptr ? TensorDescriptor::compact(shape, dtype)
                                       : TensorDescriptor::strided(shape, strides, dtype, 0));
  if (!same_bytes(dtype, padded))
    return unsupported("elements of " + dtype.to_string() + " share bytes; unpack them first");
  if (descriptor.element_count() == 0) return Seen{nullptr, descriptor};
  if (tensor.data == nullptr) return invalid("null data of " + descriptor.to_string());
  auto first = checked_add<uint64_t>(reinterpret_cast<uintptr_t>(tensor.data), tensor.byte_offset);
  if (!first || !checked_add<uint64_t>(*first, descriptor.span_bytes())) {
    return invalid("byte offset " + std::to_string(tensor.byte_offset) + " and " +
                   descriptor.to_string() + " pass the end of the address space");
  }
  if (*first % alignment_of(dtype) != 0) {
    return unsupported("the first element is at an address that is no multiple of " +
                       std::to_string(alignment_of(dtype)) + " bytes; copy " +
                       descriptor.to_string() + " to aligned memory first");
  }
  return Seen{static_cast<std::byte*>(tensor.data) + tensor.byte_offset, descriptor};
}

template <typename Managed>
void end_import(void* managed) {
  DlpackRelease()(static_cast<Managed*>(managed));
}

// Our own export's memory and the tensor's place in it; nothing if the consumer moved the
// tensor elsewhere meanwhile.
template <typename Managed>
std::optional<std::pair<StorageRef, TensorDescriptor>> reclaimed(const Managed& managed,
                                                                 const Seen& seen) {
  if (managed.deleter != &Export<Managed>::end) return std::nullopt;
  const StorageRef& storage = static_cast<Export<Managed>*>(managed.manager_ctx)->storage;
  uintptr_t start = reinterpret_cast<uintptr_t>(storage->data());
  uintptr_t first = seen.first == nullptr ? start : reinterpret_cast<uintptr_t>(seen.first);
  // An address below the start wraps to an offset beyond any size.
  if (!range_fits(first - start, seen.descriptor.span_bytes(), storage->size()))
    return std::nullopt;
  const TensorDescriptor& d = seen.descriptor;
  auto placed = TensorDescriptor::strided(d.shape(), d.strides(), d.dtype(), first - start);
  if (!placed.ok()) return std::nullopt;
  return std::pair(storage, *placed);
}

template <typename Managed>
bool read_only(const Managed& managed) {
  if constexpr (kVersioned<Managed>) {
    if (managed.flags & DLPACK_FLAG_BITMASK_READ_ONLY) return true;
  }
  return managed.deleter == &Export<Managed>::end &&
         static_cast<Export<Managed>*>(managed.manager_ctx)->read_only;
}

template <typename Managed>
Result<Seen> checked(const Handle<Managed>& managed) {
  if (managed == nullptr) return invalid("null DLPack tensor");
  bool padded = false;
  if constexpr (kVersioned<Managed>) {
    if (managed->version.major != kVersion.major) {
      return unsupported("the tensor is of DLPack " + std::to_string(managed->version.major) + "." +
                         std::to_string(managed->version.minor) + ", this is " +
                         std::to_string(kVersion.major) + "." + std::to_string(kVersion.minor) +
                         "; ask the producer for that (max_version)");
    }
    padded = managed->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
  }
  return checked(managed->dl_tensor, padded);
}

template <typename Managed>
Result<Tensor> imported_tensor(Handle<Managed>&& managed) {
  SLUICE_TRY(Seen seen, checked(managed));
  if (auto own = reclaimed(*managed, seen)) {
    managed.reset();
    return Tensor(std::move(own->first), own->second);
  }
  SLUICE_TRY(Tensor tensor,
             Tensor::wrap(seen.first, seen.descriptor, &end_import<Managed>, managed.get()));
  (void)managed.release();  // end_import() has it
  return tensor;
}

template <typename Managed>
Result<Buffer> imported_buffer(Handle<Managed>&& managed) {
  SLUICE_TRY(Seen seen, checked(managed));
  if (read_only(*managed)) {
    return refusal(Code::kAccessDenied, "the producer lends " + seen.descriptor.to_string() +
                                            " read-only; import it as a Tensor");
  }
  if (auto own = reclaimed(*managed, seen)) {
    managed.reset();
    return Buffer(std::move(own->first), own->second);
  }
  SLUICE_TRY(Buffer buffer, Buffer::wrap(seen.first, seen.descriptor.span_bytes(),
                                         &end_import<Managed>, managed.get()));
  (void)managed.release();  // end_import() has it
  SLUICE_RETURN_IF_ERROR(
      buffer.reshape(seen.descriptor));  // cannot fail: the memory is of its span
  return buffer;
}

}  // namespace

void DlpackRelease::operator()(DLManagedTensorVersioned* managed) const noexcept {
  if (managed->deleter != nullptr) managed->deleter(managed);
}
void DlpackRelease::operator()(DLManagedTensor* managed) const noexcept {
  if (managed->deleter != nullptr) managed->deleter(managed);
}

Result<DlpackTensor> to_dlpack(const Tensor& tensor) {
  return exported<DLManagedTensorVersioned>(tensor.storage(), tensor.descriptor(), true);
}
Result<DlpackTensor> to_dlpack(Buffer&& buffer) {
  return exported<DLManagedTensorVersioned>(std::move(buffer));
}
Result<LegacyDlpackTensor> to_legacy_dlpack(const Tensor& tensor) {
  return exported<DLManagedTensor>(tensor.storage(), tensor.descriptor(), true);
}
Result<LegacyDlpackTensor> to_legacy_dlpack(Buffer&& buffer) {
  return exported<DLManagedTensor>(std::move(buffer));
}

Result<Tensor> tensor_from_dlpack(DlpackTensor&& managed) {
  return imported_tensor(std::move(managed));
}
Result<Tensor> tensor_from_dlpack(LegacyDlpackTensor&& managed) {
  return imported_tensor(std::move(managed));
}
Result<Buffer> buffer_from_dlpack(DlpackTensor&& managed) {
  return imported_buffer(std::move(managed));
}
Result<Buffer> buffer_from_dlpack(LegacyDlpackTensor&& managed) {
  return imported_buffer(std::move(managed));
}

}  // namespace sluice
