// DLPack in and out: tensors shared with NumPy, PyTorch, JAX and others, without a copy.
// Knows the structs of DLPack, no framework and no Python. A program gets the structs from
// DLPack's own header or from <sluice/allocator/dlpack_abi.h>.
#ifndef SLUICE_ALLOCATOR_DLPACK_H_
#define SLUICE_ALLOCATOR_DLPACK_H_

#include <memory>

#include <sluice/allocator/buffer.h>
#include <sluice/base/result.h>

extern "C" {
struct DLManagedTensorVersioned;  // since DLPack 1.0
struct DLManagedTensor;           // before: what NumPy 1.x takes and gives
}

namespace sluice {

// Calls the producer's deleter, if it has one.
struct DlpackRelease {
  void operator()(DLManagedTensorVersioned* managed) const noexcept;
  void operator()(DLManagedTensor* managed) const noexcept;
};

// One side of an exchange holds it; release() hands the bare pointer to a consumer (a
// PyCapsule), which then calls the deleter itself.
using DlpackTensor = std::unique_ptr<DLManagedTensorVersioned, DlpackRelease>;
using LegacyDlpackTensor = std::unique_ptr<DLManagedTensor, DlpackRelease>;

// Out: the consumer sees our memory, on device CPU, with our shape and strides (in
// elements, never null); `data` is the start of the memory, `byte_offset` leads to the
// first element; `data` of a tensor without elements is null. Alignment of `data`: 256
// bytes, as DLPack asks, for memory of an Arena; as its owner aligned it for wrapped
// memory, and as the peer's tensor lay in its memory for a view.
//
// Ownership: the export holds the memory until its deleter runs, on any thread, also after
// endpoint and context ended. A Tensor is shared and exported read-only; a Buffer is
// exported writable and taken only if the result is ok.
// Errors: kInvalidArgument (empty handle), kUnsupported (device memory; vectors of elements
// below 8 bits that do not fill whole bytes; in the legacy form, which cannot say that
// elements are padded to bytes, also single ones).
Result<DlpackTensor> to_dlpack(const Tensor& tensor);
Result<DlpackTensor> to_dlpack(Buffer&& buffer);
// The legacy form cannot say "read-only": the caller answers for a consumer that does not
// write. Writing to a view of a peer's memory ends the process (SIGSEGV).
Result<LegacyDlpackTensor> to_legacy_dlpack(const Tensor& tensor);
Result<LegacyDlpackTensor> to_legacy_dlpack(Buffer&& buffer);

// In: the producer's memory as a Tensor or Buffer, StorageKind::kForeign, whose first byte
// is the first element; nothing outside the elements' span can be reached through it. It
// belongs to no arena, so paths that need one copy it once. What sluice exported itself
// comes back as what it was: arena memory stays arena memory, and crosses without a copy.
// No alignment is needed beyond the element's own.
//
// Ownership: taken only if the result is ok; the producer's deleter then runs once, on the
// thread that ends the last use. On an error it is still the caller's, whose handle runs it.
// Errors: kUnsupported (device other than CPU, another major version, elements below 8 bits
// packed into shared bytes, elements at addresses that are no multiple of their own
// size), kAccessDenied (read-only memory as a Buffer: import it as a Tensor),
// kInvalidArgument (null handle, data or shape; rank below 0 or above kMaxRank; negative
// extents; negative or overlapping strides; a code, width or number of lanes that DLPack
// does not define; sizes or byte_offset that pass the end of the address space).
// The memory itself is taken on trust: nobody can check a foreign pointer.
Result<Tensor> tensor_from_dlpack(DlpackTensor&& managed);
Result<Tensor> tensor_from_dlpack(LegacyDlpackTensor&& managed);
Result<Buffer> buffer_from_dlpack(DlpackTensor&& managed);
Result<Buffer> buffer_from_dlpack(LegacyDlpackTensor&& managed);

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_DLPACK_H_
