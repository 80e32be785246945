// Memory of a device, such as an accelerator, in Buffers and Tensors: named by a dma-buf, by
// addresses that the processor must not use, or both. Knows no path: whoever can reach such memory
// takes its descriptor, everybody else copies by host memory.
#ifndef SLUICE_ALLOCATOR_DEVICE_MEMORY_H_
#define SLUICE_ALLOCATOR_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <sluice/allocator/arena.h>
#include <sluice/allocator/buffer.h>
#include <sluice/base/result.h>

namespace sluice {

// Moves bytes between a device's memory and the host's, where a path does not reach the device's.
// An accelerator's runtime does it best (cudaMemcpy, hipMemcpy). Thread: the one that posts the
// operation or calls progress(), which waits for it. `device` lies within the memory.
// Errors: what the device says; the operation ends with it.
class DeviceCopy {
 public:
  virtual ~DeviceCopy() = default;
  virtual Status to_host(std::byte* into, const std::byte* device, size_t length) noexcept = 0;
  virtual Status from_host(std::byte* device, const std::byte* from, size_t length) noexcept = 0;
};

struct DeviceMemory {
  // The exporter's descriptor of it (linux/dma-buf.h), duplicated by wrap_device_memory(). -1:
  // none, so no RDMA device reaches the memory.
  int dma_buf = -1;
  // Of the memory in the dma-buf, bytes. For RDMA devices as far into a page as `address`, if that
  // is given.
  uint64_t offset = 0;
  uint64_t length = 0;  // bytes
  // Where the device's runtime says that it lies: what data() gives, and what `copy` gets. Null:
  // addresses are reserved for it, which nobody can read or write.
  std::byte* address = nullptr;
  // Null: by a mapping of the dma-buf (DMA_BUF_IOCTL_SYNC around each copy), if its exporter has
  // one.
  std::shared_ptr<DeviceCopy> copy;
  // Called once nothing refers to the memory any more, on the thread that ended the last use. Not
  // in a forked child: the memory is the parent's.
  void (*done)(void* user) = nullptr;
  void* user = nullptr;
};

// The memory as a Buffer of `length` bytes. Endpoints and exchanges take it like any other, as a
// source and as a destination. An RDMA device that imports the dma-buf reads and writes it in
// place. Over other paths its bytes pass host memory once: the receipt counts that copy. The
// program must not use data(): it is an address of the device's. Ownership: the memory lives until
// `done` ran; the descriptor stays the caller's. Errors: kInvalidArgument (no bytes; neither a
// dma-buf nor `copy` and `address`; the descriptor is no dma-buf or has no such range),
// kUnsupported (its exporter lets no processor map it: give `copy`), kNoMemory (no descriptor or
// addresses left).
Result<Buffer> wrap_device_memory(const DeviceMemory& memory);

// All copies are counted (device_memory.bytes_copied). Errors: what the device says, and where
// memory is allocated, kNoMemory.

// The tensor's bytes and layout in memory of the arena. Requires: in_device_memory().
Result<Tensor> copy_to_host(Arena& arena, const Tensor& tensor);
// To the start of `into`. Requires: in_device_memory(), and they fit.
Status copy_from_host(const Buffer& into, std::span<const std::byte> from);
// From one to the start of the other, of which one or both lie in device memory; if both, by host
// memory, which makes two copies. Requires: they fit.
Status copy_device_bytes(const Buffer& into, const Tensor& from);

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_DEVICE_MEMORY_H_
