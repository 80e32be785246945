#include "tests/module/memory.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace sluice::module_test {
namespace {

int done(int result) { return result == 0 ? 0 : errno; }

}  // namespace

Pages::Pages(size_t bytes)
    : data_(static_cast<uint8_t*>(
          ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
      bytes_(bytes) {}

void Pages::unmap() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  data_ = nullptr;
}

uint64_t pinned_kib() {
  std::ifstream file("/proc/self/status");
  std::string word;
  uint64_t value;
  while (file >> word)
    if (word == "VmPin:" && file >> value) return value;
  throw std::runtime_error("no VmPin");
}

int register_memory(int fd, const void* data, uint64_t length, uint32_t& region) {
  sluice_register request{
      .address = reinterpret_cast<uintptr_t>(data), .length = length, .region = 0, .zero = 0};
  int error = done(::ioctl(fd, SLUICE_REGISTER, &request));
  region = request.region;
  return error;
}

int unregister_memory(int fd, uint32_t region) {
  return done(::ioctl(fd, SLUICE_UNREGISTER, &region));
}

int open_handle(int fd, const sockaddr_sluice& peer, uint32_t region, uint64_t offset,
                uint64_t length, uint32_t rights, uint32_t& handle, uint64_t user_data,
                uint64_t base) {
  sluice_open request{};
  request.peer = peer;
  request.user_data = user_data;
  request.offset = offset;
  request.length = length;
  request.region = region;
  request.rights = rights;
  request.base = base;
  int error = done(::ioctl(fd, SLUICE_OPEN, &request));
  handle = request.handle;
  return error;
}

int close_handle(int fd, const sockaddr_sluice& peer, uint32_t handle) {
  sluice_close request{};
  request.peer = peer;
  request.handle = handle;
  return done(::ioctl(fd, SLUICE_CLOSE, &request));
}

int transfer(int fd, const sluice_transfer& request) {
  sluice_transfer copy = request;
  return done(::ioctl(fd, SLUICE_TRANSFER, &copy));
}

int cancel(int fd, uint64_t user_data) {
  __u64 name = user_data;
  return done(::ioctl(fd, SLUICE_CANCEL, &name));
}

Ring::Ring(int fd, uint32_t entries)
    : fd_(fd),
      bytes_((sizeof(sluice_ring) + entries * sizeof(sluice_completion) + 4095) / 4096 * 4096) {
  int count = static_cast<int>(entries);
  if (::setsockopt(fd, SOL_SLUICE, SLUICE_RING, &count, sizeof(count)) != 0)
    throw std::runtime_error("no ring: " + std::string(std::strerror(errno)));
  void* at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED)
    throw std::runtime_error("a ring that cannot be mapped: " + std::string(std::strerror(errno)));
  ring_ = static_cast<sluice_ring*>(at);
}

Ring::~Ring() { ::munmap(ring_, bytes_); }

std::optional<sluice_completion> Ring::take() {
  uint32_t tail = ring_->tail;
  if (std::atomic_ref<uint32_t>(ring_->head).load(std::memory_order_acquire) == tail)
    return std::nullopt;
  auto* entries =
      reinterpret_cast<sluice_completion*>(reinterpret_cast<char*>(ring_) + ring_->entries_at);
  sluice_completion entry = entries[tail & ring_->mask];
  std::atomic_ref<uint32_t>(ring_->tail).store(tail + 1, std::memory_order_release);
  return entry;
}

std::optional<sluice_completion> Ring::wait() {
  for (int tries = 0; tries < 20000; ++tries) {
    if (auto entry = take()) return entry;
    pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
    ::poll(&wait, 1, 1);
  }
  return std::nullopt;
}

}  // namespace sluice::module_test
