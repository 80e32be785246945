// The C structs of DLPack 1.1, by which array libraries lend each other memory. For
// programs without the project's own header; Debian 12 has 0.6, without the versioned one.
// Source: dmlc/dlpack, include/dlpack/dlpack.h, version 1.1: names, order and values are
// that file's. Knows nothing of sluice.
#ifndef SLUICE_ALLOCATOR_DLPACK_ABI_H_
#define SLUICE_ALLOCATOR_DLPACK_ABI_H_

// Include the project's own header first where both are needed: this one then adds nothing.
#if defined(DLPACK_DLPACK_H_) && !defined(DLPACK_MAJOR_VERSION)
#error "an older dlpack.h came first; drop it: <sluice/allocator/dlpack_abi.h> has its structs"
#endif

#ifndef DLPACK_DLPACK_H_

#include <cstdint>

extern "C" {

// Another major version is another layout, from dl_tensor on.
struct DLPackVersion {
  uint32_t major;
  uint32_t minor;
};

// Only what the processor can reach is of interest here.
enum DLDeviceType : int32_t { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLROCM = 10 };

struct DLDevice {
  DLDeviceType device_type;
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;  // as sluice::TypeCode
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;      // in elements; null (before 1.2): compact, row-major
  uint64_t byte_offset;  // from `data` to the first element
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self);  // may be null
};

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned* self);  // may be null
  uint64_t flags;
  DLTensor dl_tensor;
};

}  // extern "C"

#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)
#define DLPACK_FLAG_BITMASK_IS_COPIED (1UL << 1UL)
#define DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED (1UL << 2UL)

#endif  // DLPACK_DLPACK_H_

#endif  // SLUICE_ALLOCATOR_DLPACK_ABI_H_
