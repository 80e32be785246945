// Memory that only a device's own engine touches: its addresses are mapped without any right, so
// whoever uses them ends with SIGSEGV. The engine has the bytes by a mapping of its own.
#ifndef SLUICE_TESTS_SUPPORT_PRETEND_DEVICE_H_
#define SLUICE_TESTS_SUPPORT_PRETEND_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <sluice/allocator/device_memory.h>

namespace sluice::test {

class PretendDevice {
 public:
  explicit PretendDevice(size_t bytes);
  ~PretendDevice();
  PretendDevice(const PretendDevice&) = delete;
  PretendDevice& operator=(const PretendDevice&) = delete;

  // All of its memory, with the file behind it as a dma-buf or without. Fails the test on an error.
  Buffer wrap(bool dma_buf);
  DeviceMemory description(bool dma_buf);
  // As the engine sees it.
  std::span<std::byte> bytes() const { return {own_, size_}; }
  std::byte* address() const { return address_; }
  int file() const { return file_; }

  uint64_t to_host_bytes() const;
  uint64_t from_host_bytes() const;
  // From now on the engine refuses.
  void break_engine();
  // How often `done` was called.
  int ended() const { return ended_; }

 private:
  class Engine;

  size_t size_;
  int file_ = -1;
  std::byte* own_ = nullptr;
  std::byte* address_ = nullptr;
  std::shared_ptr<Engine> engine_;
  int ended_ = 0;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_SUPPORT_PRETEND_DEVICE_H_
