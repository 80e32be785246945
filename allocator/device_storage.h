// What stands behind a Buffer or Tensor of device memory, for those who reach or copy it. Private
// to the library.
#ifndef SLUICE_ALLOCATOR_DEVICE_STORAGE_H_
#define SLUICE_ALLOCATOR_DEVICE_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <sluice/allocator/buffer.h>
#include <sluice/allocator/device_memory.h>
#include <sluice/allocator/storage.h>
#include <sluice/base/process_mark.h>
#include <sluice/base/result.h>

namespace sluice {

class DeviceStorage;

// Whoever keeps something for device memory, such as its registration. Thread: any.
class DeviceMemoryUser {
 public:
  // Nothing refers to it any more: what was kept for it ends now.
  virtual void device_memory_ended(const DeviceStorage& storage) noexcept = 0;

 protected:
  ~DeviceMemoryUser() = default;
};

class DeviceStorage final : public Storage {
 public:
  ~DeviceStorage();
  // Null: it is no device memory.
  static DeviceStorage* of(const StorageRef& storage) {
    return storage && storage->kind() == StorageKind::kDevice
               ? static_cast<DeviceStorage*>(storage.get())
               : nullptr;
  }
  // -1: none. Good as long as the storage is.
  int dma_buf() const { return dma_buf_; }
  uint64_t offset() const { return offset_; }
  // Requires: the range lies in it.
  Status to_host(std::byte* into, const std::byte* device, size_t length) noexcept;
  Status from_host(std::byte* device, const std::byte* from, size_t length) noexcept;
  // Is told of its end, if it is there then.
  void add_user(std::weak_ptr<DeviceMemoryUser> user);

 private:
  friend Result<Buffer> wrap_device_memory(const DeviceMemory& memory);
  DeviceStorage() = default;
  static void end(Storage* storage) noexcept;

  const ProcessMark owner_ = ProcessMark::current();
  int dma_buf_ = -1;
  uint64_t offset_ = 0;
  std::byte* reserved_ = nullptr;  // addresses, from the start of a page on
  std::shared_ptr<DeviceCopy> copy_;
  void (*done_)(void*) = nullptr;
  void* user_ = nullptr;
  std::mutex mutex_;
  std::vector<std::weak_ptr<DeviceMemoryUser>> users_;
};

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_DEVICE_STORAGE_H_
