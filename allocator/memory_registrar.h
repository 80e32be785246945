// The interface to devices: a registrar is told of every extent, once, when it is added.
#ifndef SLUICE_ALLOCATOR_MEMORY_REGISTRAR_H_
#define SLUICE_ALLOCATOR_MEMORY_REGISTRAR_H_

#include <cstddef>
#include <cstdint>

#include <sluice/base/result.h>

namespace sluice {

using ExtentId = uint32_t;

class MemoryRegistrar {
 public:
  virtual ~MemoryRegistrar() = default;

  // Called before the extent serves its first allocation; an error refuses the
  // extent and reaches the caller of allocate(). Thread: the one that grew the arena.
  // Both calls come one at a time and must not grow or trim the arena themselves.
  virtual Status extent_added(ExtentId id, std::byte* base, size_t length) = 0;
  // Called when the extent holds no allocation and is about to be given back.
  virtual void extent_removed(ExtentId id) noexcept = 0;
};

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_MEMORY_REGISTRAR_H_
