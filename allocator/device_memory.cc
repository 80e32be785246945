#include <sluice/allocator/device_storage.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <sluice/base/checked.h>
#include <sluice/base/counters.h>

namespace sluice {
namespace {

constexpr const char* kOrigin = "allocator/device_memory";
// From one device to another: by so much host memory.
constexpr size_t kBetweenDevices = 1u << 20;

Counter bytes_copied("device_memory.bytes_copied");

Status refusal(Code code, const std::string& why, int error = 0) {
  return Status(code, Scope::kOperation, kOrigin, why, error);
}

// Asked again while the exporter says so (linux/dma-buf.h).
int sync(int fd, uint64_t what) {
  dma_buf_sync request{.flags = what};
  while (::ioctl(fd, DMA_BUF_IOCTL_SYNC, &request) != 0) {
    if (errno != EINTR && errno != EAGAIN) return errno;
  }
  return 0;
}

// Through a mapping of the dma-buf.
class MappedCopy final : public DeviceCopy {
 public:
  // `fd` outlives it. `device`: the address of the byte at `offset`.
  static Result<std::shared_ptr<DeviceCopy>> make(int fd, uint64_t offset, uint64_t length,
                                                  const std::byte* device) {
    if (int error = sync(fd, DMA_BUF_SYNC_START | DMA_BUF_SYNC_READ); error != 0)
      return refusal(Code::kInvalidArgument,
                     "descriptor " + std::to_string(fd) +
                         " is no dma-buf; give the one that the device's driver exported",
                     error);
    (void)sync(fd, DMA_BUF_SYNC_END | DMA_BUF_SYNC_READ);
    // From its start: a fault in a mapping that begins elsewhere gets the wrong page from exporters
    // that count from where the mapping begins (drm_gem_shmem_fault() of Linux 6.1).
    void* base = ::mmap(nullptr, offset + length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED && errno == EINVAL)
      return refusal(Code::kInvalidArgument,
                     "the dma-buf has no " + std::to_string(length) + " bytes at " +
                         std::to_string(offset) + "; give a range within it",
                     EINVAL);
    if (base == MAP_FAILED)
      return refusal(Code::kUnsupported,
                     "the dma-buf cannot be mapped by the processor; give DeviceMemory::copy, "
                     "which copies by the device's own runtime",
                     errno);
    auto copy = std::make_shared<MappedCopy>();
    copy->fd_ = fd;
    copy->base_ = static_cast<std::byte*>(base);
    copy->mapped_ = offset + length;
    copy->first_ = copy->base_ + offset;
    copy->device_ = device;
    return std::shared_ptr<DeviceCopy>(std::move(copy));
  }
  ~MappedCopy() override { ::munmap(base_, mapped_); }

  Status to_host(std::byte* into, const std::byte* device, size_t length) noexcept override {
    return during(DMA_BUF_SYNC_READ, [&] { std::memcpy(into, at(device), length); });
  }
  Status from_host(std::byte* device, const std::byte* from, size_t length) noexcept override {
    return during(DMA_BUF_SYNC_WRITE, [&] { std::memcpy(at(device), from, length); });
  }

 private:
  std::byte* at(const std::byte* device) const { return first_ + (device - device_); }
  template <typename Copy>
  Status during(uint64_t access, Copy&& copy) const {
    int error = sync(fd_, DMA_BUF_SYNC_START | access);
    if (error == 0) {
      copy();
      error = sync(fd_, DMA_BUF_SYNC_END | access);
    }
    if (error == 0) return Status();
    return refusal(Code::kInternal,
                   "the dma-buf's exporter refuses the processor; give DeviceMemory::copy", error);
  }

  int fd_ = -1;
  std::byte* base_ = nullptr;
  size_t mapped_ = 0;
  std::byte* first_ = nullptr;
  const std::byte* device_ = nullptr;
};

Status check(const DeviceMemory& memory) {
  if (memory.length == 0)
    return refusal(Code::kInvalidArgument, "device memory of no bytes; give its length");
  if (!checked_add<uint64_t>(memory.offset, memory.length) ||
      memory.offset + memory.length > INT64_MAX)
    return refusal(Code::kInvalidArgument,
                   "device memory beyond 2^63 bytes of its dma-buf; give a range within it");
  if (memory.dma_buf < 0 && (memory.copy == nullptr || memory.address == nullptr))
    return refusal(
        Code::kInvalidArgument,
        "device memory without a dma-buf, and without an address and a copy function; give one "
        "of the two");
  return Status();
}

}  // namespace

Result<Buffer> wrap_device_memory(const DeviceMemory& memory) {
  SLUICE_RETURN_IF_ERROR(check(memory));
  // On an error nothing is kept, and `done` is not called: the memory is the caller's still.
  std::unique_ptr<DeviceStorage> storage(new DeviceStorage());
  storage->offset_ = memory.offset;
  if (memory.dma_buf >= 0) {
    storage->dma_buf_ = ::fcntl(memory.dma_buf, F_DUPFD_CLOEXEC, 0);
    if (storage->dma_buf_ < 0)
      return refusal(errno == EBADF ? Code::kInvalidArgument : Code::kNoMemory,
                     "descriptor " + std::to_string(memory.dma_buf) +
                         " cannot be duplicated; give an open one, or raise ulimit -n",
                     errno);
  }
  std::byte* address = memory.address;
  if (address == nullptr) {
    // As far into a page as in the dma-buf: else no RDMA device registers it
    // (ibv_reg_dmabuf_mr(3)).
    const uint64_t before = memory.offset % static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    void* reserved = ::mmap(nullptr, before + memory.length, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
      return refusal(Code::kNoMemory,
                     "no " + std::to_string(memory.length) + " addresses are left; raise ulimit -v",
                     errno);
    storage->reserved_ = static_cast<std::byte*>(reserved);
    address = storage->reserved_ + before;
  }
  storage->reset(address, memory.length, StorageKind::kDevice, &DeviceStorage::end);
  storage->copy_ = memory.copy;
  if (storage->copy_ == nullptr) {
    SLUICE_TRY(storage->copy_,
               MappedCopy::make(storage->dma_buf_, memory.offset, memory.length, address));
  }
  storage->done_ = memory.done;
  storage->user_ = memory.user;
  return Buffer(StorageRef::adopt(storage.release()), TensorDescriptor::bytes(memory.length));
}

DeviceStorage::~DeviceStorage() {
  copy_.reset();  // a mapping of the descriptor
  if (dma_buf_ >= 0) ::close(dma_buf_);
  if (reserved_ != nullptr) ::munmap(reserved_, static_cast<size_t>(data() - reserved_) + size());
}

Status DeviceStorage::to_host(std::byte* into, const std::byte* device, size_t length) noexcept {
  if (length == 0) return Status();
  bytes_copied.add(length);
  return copy_->to_host(into, device, length);
}

Status DeviceStorage::from_host(std::byte* device, const std::byte* from, size_t length) noexcept {
  if (length == 0) return Status();
  bytes_copied.add(length);
  return copy_->from_host(device, from, length);
}

void DeviceStorage::add_user(std::weak_ptr<DeviceMemoryUser> user) {
  std::lock_guard lock(mutex_);
  std::erase_if(users_, [](const auto& each) { return each.expired(); });
  users_.push_back(std::move(user));
}

// The last reference has gone, so nobody adds a user any more. In a forked child the memory and
// what is kept for it are the parent's: a registration that the child ended would end there.
void DeviceStorage::end(Storage* storage) noexcept {
  auto* self = static_cast<DeviceStorage*>(storage);
  const bool ours = !self->owner_.in_forked_child();
  for (auto& each : self->users_) {
    auto user = ours ? each.lock() : nullptr;
    if (user != nullptr) user->device_memory_ended(*self);
  }
  void (*done)(void*) = ours ? self->done_ : nullptr;
  void* user = self->user_;
  delete self;
  if (done != nullptr) done(user);
}

Result<Tensor> copy_to_host(Arena& arena, const Tensor& tensor) {
  const size_t bytes = tensor.size_bytes();
  SLUICE_TRY(Buffer host, arena.allocate(std::max<size_t>(bytes, 1)));
  SLUICE_RETURN_IF_ERROR(
      DeviceStorage::of(tensor.storage())->to_host(host.data(), tensor.data(), bytes));
  return Tensor(host.storage(), tensor.descriptor().at_start());
}

Status copy_from_host(const Buffer& into, std::span<const std::byte> from) {
  return DeviceStorage::of(into.storage())->from_host(into.data(), from.data(), from.size());
}

Status copy_device_bytes(const Buffer& into, const Tensor& from) {
  DeviceStorage* target = DeviceStorage::of(into.storage());
  DeviceStorage* source = DeviceStorage::of(from.storage());
  const size_t length = from.size_bytes();
  if (target == nullptr) return source->to_host(into.data(), from.data(), length);
  if (source == nullptr) return target->from_host(into.data(), from.data(), length);
  std::vector<std::byte> between(std::min(length, kBetweenDevices));
  for (size_t done = 0; done < length;) {
    const size_t part = std::min(between.size(), length - done);
    SLUICE_RETURN_IF_ERROR(source->to_host(between.data(), from.data() + done, part));
    SLUICE_RETURN_IF_ERROR(target->from_host(into.data() + done, between.data(), part));
    done += part;
  }
  return Status();
}

}  // namespace sluice
