// A range of memory that a collective reads or writes. Knows no endpoints.
#ifndef SLUICE_COLLECTIVE_REGION_H_
#define SLUICE_COLLECTIVE_REGION_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <sluice/allocator/buffer.h>

namespace sluice {

// Shares ownership of a Buffer's memory: the memory lives until the operation has ended, also if
// the Buffer ends before. The program leaves the bytes alone meanwhile.
class Region {
 public:
  Region() = default;
  Region(const Buffer& buffer)
      : storage_(buffer.storage()),
        offset_(buffer.descriptor().byte_offset()),
        bytes_(buffer.size_bytes()),
        valid_(!buffer.in_device_memory()) {}
  // `bytes` from `offset`, both in bytes. A range outside the buffer gives an invalid region.
  Region(const Buffer& buffer, size_t offset, size_t bytes) {
    *this = Region(buffer).part(offset, bytes);
  }

  // False: a range outside its memory was asked for, or it is device memory, which collectives do
  // not take. Every operation refuses it.
  bool valid() const { return valid_; }
  size_t bytes() const { return bytes_; }
  std::byte* data() const { return storage_ ? storage_->data() + offset_ : nullptr; }

  Region part(size_t offset, size_t bytes) const {
    Region part = *this;
    part.valid_ = valid_ && offset <= bytes_ && bytes <= bytes_ - offset;
    part.offset_ = part.valid_ ? offset_ + offset : 0;
    part.bytes_ = part.valid_ ? bytes : 0;
    return part;
  }

  // The same memory, to receive into.
  Buffer as_buffer() const { return Buffer(storage_, descriptor()); }
  // The same memory, to send or lend. Its bytes may still change: the one who lends knows when.
  Tensor as_tensor() const { return Tensor(storage_, descriptor()); }

 private:
  TensorDescriptor descriptor() const {
    if (offset_ == 0) return TensorDescriptor::bytes(bytes_);
    const int64_t shape[] = {static_cast<int64_t>(bytes_)};
    const int64_t strides[] = {1};
    // A range within memory that exists: it cannot be refused.
    return TensorDescriptor::strided(shape, strides, uint8, offset_).value();
  }

  StorageRef storage_;
  size_t offset_ = 0;
  size_t bytes_ = 0;
  bool valid_ = true;
};

}  // namespace sluice

#endif  // SLUICE_COLLECTIVE_REGION_H_
