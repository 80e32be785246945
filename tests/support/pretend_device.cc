#include "tests/support/pretend_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include <catch2/catch.hpp>

namespace sluice::test {

class PretendDevice::Engine final : public DeviceCopy {
 public:
  Engine(std::byte* own, std::byte* address, size_t size)
      : own_(own), address_(address), size_(size) {}
  Status to_host(std::byte* into, const std::byte* device, size_t length) noexcept override {
    if (Status refused = check(device, length); !refused.ok()) return refused;
    std::memcpy(into, own_ + (device - address_), length);
    to_host_bytes += length;
    return Status();
  }
  Status from_host(std::byte* device, const std::byte* from, size_t length) noexcept override {
    if (Status refused = check(device, length); !refused.ok()) return refused;
    std::memcpy(own_ + (device - address_), from, length);
    from_host_bytes += length;
    return Status();
  }
  uint64_t to_host_bytes = 0, from_host_bytes = 0;
  bool broken = false;

 private:
  Status check(const std::byte* device, size_t length) const {
    const bool inside = device >= address_ && device + length <= address_ + size_ && length > 0;
    if (!inside) return Status(Code::kInternal, Scope::kOperation, "test", "outside the memory");
    if (broken) return Status(Code::kInternal, Scope::kOperation, "test", "the engine is broken");
    return Status();
  }
  std::byte* const own_;
  std::byte* const address_;
  const size_t size_;
};

PretendDevice::PretendDevice(size_t bytes) : size_(bytes) {
  file_ = ::memfd_create("pretend-device", MFD_CLOEXEC);
  REQUIRE(::ftruncate(file_, static_cast<off_t>(bytes)) == 0);
  void* own = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  REQUIRE(own != MAP_FAILED);
  own_ = static_cast<std::byte*>(own);
  void* address = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(address != MAP_FAILED);
  address_ = static_cast<std::byte*>(address);
  engine_ = std::make_shared<Engine>(own_, address_, bytes);
}

PretendDevice::~PretendDevice() {
  ::munmap(own_, size_);
  ::munmap(address_, size_);
  ::close(file_);
}

DeviceMemory PretendDevice::description(bool dma_buf) {
  return {.dma_buf = dma_buf ? file_ : -1,
          .offset = 0,
          .length = size_,
          .address = address_,
          .copy = engine_,
          .done = [](void* self) { ++static_cast<PretendDevice*>(self)->ended_; },
          .user = this};
}

Buffer PretendDevice::wrap(bool dma_buf) {
  Result<Buffer> wrapped = wrap_device_memory(description(dma_buf));
  INFO(wrapped.status().to_string());
  REQUIRE(wrapped.ok());
  return std::move(*wrapped);
}

uint64_t PretendDevice::to_host_bytes() const { return engine_->to_host_bytes; }
uint64_t PretendDevice::from_host_bytes() const { return engine_->from_host_bytes; }
void PretendDevice::break_engine() { engine_->broken = true; }

}  // namespace sluice::test
