// Registered memory and the completion ring, as a process uses them.
#ifndef SLUICE_TESTS_MODULE_MEMORY_H_
#define SLUICE_TESTS_MODULE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tests/module/wire.h"

namespace sluice::module_test {

// Pages of its own.
class Pages {
 public:
  explicit Pages(size_t bytes);
  Pages(Pages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Pages& operator=(Pages&&) = delete;
  ~Pages() { unmap(); }
  void unmap();
  uint8_t* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  uint8_t* data_;
  size_t bytes_;
};

uint64_t pinned_kib();  // of this process: VmPin

int register_memory(int fd, const void* data, uint64_t length, uint32_t& region);  // 0 or errno
int unregister_memory(int fd, uint32_t region);
int open_handle(int fd, const sockaddr_sluice& peer, uint32_t region, uint64_t offset,
                uint64_t length, uint32_t rights, uint32_t& handle, uint64_t user_data = 0,
                uint64_t base = 0);
int close_handle(int fd, const sockaddr_sluice& peer, uint32_t handle);
int transfer(int fd, const sluice_transfer& request);
int cancel(int fd, uint64_t user_data);

class Ring {
 public:
  Ring(int fd, uint32_t entries);
  ~Ring();
  std::optional<sluice_completion> take();
  // Waits in poll(); nothing: not within 20 s.
  std::optional<sluice_completion> wait();
  sluice_ring& raw() { return *ring_; }

 private:
  int fd_;
  size_t bytes_;
  sluice_ring* ring_;
};

}  // namespace sluice::module_test

#endif  // SLUICE_TESTS_MODULE_MEMORY_H_
