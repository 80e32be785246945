#include <sluice/verbs/registrar.h>

#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <sluice/base/clock.h>
#include <sluice/base/counters.h>
#include <sluice/base/log.h>

namespace sluice::verbs {
namespace {

constexpr const char* kOrigin = "verbs/registrar";

Counter extents_registered("verbs.extents_registered");
Counter registrations_refused("verbs.registrations_refused");
Counter registered_on_demand("verbs.registered_on_demand");
Counter device_memory_registered("verbs.device_memory_registered");
Counter device_memory_refused("verbs.device_memory_refused");

std::string mebibytes(uint64_t bytes) {
  return std::to_string((bytes + (1u << 20) - 1) >> 20) + " MiB";
}

Status invalid(const char* what) {
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, what);
}

// What ibv_reg_dmabuf_mr() says: EOPNOTSUPP of the library or the kernel's driver
// (reg_user_mr_dmabuf), ENOSYS of a library without the call, EBADF and EINVAL of
// dma_buf_get() and ib_umem_dmabuf_get().
Status dma_buf_error(uint64_t length, int error) {
  switch (error) {
    case EOPNOTSUPP:
    case ENOSYS:
    case EPROTONOSUPPORT:
      return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                    "device memory cannot be registered: it takes Linux 5.12, rdma-core 34, an "
                    "RDMA driver that imports dma-bufs (for "
                    "example mlx5) and an exporter that lets peers in; use such a device, or let "
                    "its bytes go by host memory",
                    error);
    case EBADF:
    case EINVAL:
      return Status(
          Code::kInvalidArgument, Scope::kOperation, kOrigin,
          "the descriptor is no dma-buf, has no such range, or the RDMA device takes none so "
          "large; give the exporter's descriptor, and less of it",
          error);
    case ENOMEM:
      return Status(Code::kNoMemory, Scope::kOperation, kOrigin,
                    "the RDMA device has no room to register " + mebibytes(length) +
                        " of device memory; remove other device memory first",
                    error);
    default:
      return Status(Code::kInternal, Scope::kOperation, kOrigin,
                    "device memory cannot be registered; dmesg may say why", error);
  }
}

// Why the system refused to pin `more` bytes, in words, with the remedy.
Status memlock_error(uint64_t more, uint64_t pinned, int os_error) {
  rlimit limit{};
  bool limited = ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  std::string why = "the RDMA device cannot register " + mebibytes(more) + " beside the " +
                    mebibytes(pinned) + " it has";
  if ((os_error == ENOMEM || os_error == EPERM) && limited) {
    why += ": this process may lock " + std::to_string(limit.rlim_cur >> 10) +
           " KiB (RLIMIT_MEMLOCK); raise it with `ulimit -l unlimited`, in containers with "
           "`--ulimit memlock=-1`, in services with LimitMEMLOCK=infinity";
  } else if (os_error == ENOMEM) {
    why +=
        ": out of memory or of the device's entries for it; use a smaller arena "
        "(SLUICE_ARENA_LIMIT)";
  }
  return Status(Code::kNoMemory, Scope::kOperation, kOrigin, why, os_error);
}

}  // namespace

Result<std::shared_ptr<Registrar>> Registrar::attach(VerbsApi& api, ibv_pd* pd,
                                                     std::shared_ptr<Arena> arena,
                                                     const RegistrarOptions& options) {
  Instant start = now();
  std::shared_ptr<Registrar> registrar(new Registrar(api, pd, std::move(arena), options));
  Status attached = registrar->arena_->attach(*registrar);
  if (!attached.ok()) {
    registrar->arena_ = nullptr;
    return attached;
  }
  if (log_enabled(LogLevel::kInfo)) {
    auto took = std::chrono::duration_cast<std::chrono::microseconds>(now() - start).count();
    log(LogLevel::kInfo, "registered " + mebibytes(registrar->registered_bytes()) +
                             " of the arena with the RDMA device in " + std::to_string(took) +
                             " us");
  }
  return registrar;
}

void Registrar::close() noexcept {
  if (std::shared_ptr<Arena> arena = std::exchange(arena_, nullptr)) arena->detach(*this);
  std::lock_guard lock(mutex_);
  for (Region& region : regions_) (void)api_.dereg_mr(region.mr);
  for (ibv_mr* mr : kept_) (void)api_.dereg_mr(mr);
  regions_.clear();
  kept_.clear();
  reached_.clear();
  refused_.clear();
}

// Linux says ENOMEM past RLIMIT_MEMLOCK and EPERM where that is 0 (ib_umem_get() in
// drivers/infiniband/core/umem.c).
Result<ibv_mr*> Registrar::pin(void* data, uint64_t length, int access) {
  if (std::optional<Region> device = device_region_of(data)) {
    const uint64_t before = reinterpret_cast<uint64_t>(data) - device->base;
    if (length > device->length - before)
      return invalid(
          "memory that begins on another device and does not end there; post it in parts");
    errno = 0;
    ibv_mr* mr = api_.reg_dmabuf_mr(pd_, device->offset + before, length, device->base + before,
                                    device->dma_buf, access);
    if (mr != nullptr) return mr;
    registrations_refused.add();
    return dma_buf_error(length, errno);
  }
  errno = 0;
  if (ibv_mr* mr = api_.reg_mr(pd_, data, length, access)) return mr;
  int error = errno;
  if (options_.on_demand && (error == ENOMEM || error == EPERM)) {
    if (ibv_mr* mr = api_.reg_mr(pd_, data, length, access | IBV_ACCESS_ON_DEMAND)) {
      registered_on_demand.add();
      if (on_demand_registrations_.fetch_add(1, std::memory_order_relaxed) == 0) {
        log(LogLevel::kWarning,
            "memory that may not be locked (ulimit -l) is registered for on-demand paging: the "
            "RDMA device waits for its pages");
      }
      return mr;
    }
  }
  registrations_refused.add();
  return memlock_error(length, registered_bytes(), error);
}

void Registrar::insert(const Region& region) {
  std::lock_guard lock(mutex_);
  auto after = std::upper_bound(regions_.begin(), regions_.end(), region.base,
                                [](uint64_t at, const Region& r) { return at < r.base; });
  regions_.insert(after, region);
  ++registrations_;
}

const Registrar::Region* Registrar::region_of(uint64_t at) const {
  auto after = std::upper_bound(regions_.begin(), regions_.end(), at,
                                [](uint64_t a, const Region& r) { return a < r.base; });
  if (after == regions_.begin()) return nullptr;
  const Region& region = *(after - 1);
  return at - region.base < region.length ? &region : nullptr;
}

Status Registrar::extent_added(ExtentId id, std::byte* base, size_t length) {
  int access = IBV_ACCESS_LOCAL_WRITE;
  if (options_.windows) access |= IBV_ACCESS_MW_BIND;
  SLUICE_TRY(ibv_mr * mr, pin(base, length, access));
  extents_registered.add();
  insert({.id = id, .base = reinterpret_cast<uint64_t>(base), .length = length, .mr = mr});
  return Status();
}

void Registrar::extent_removed(ExtentId id) noexcept {
  ibv_mr* mr = nullptr;
  {
    std::lock_guard lock(mutex_);
    auto found =
        std::find_if(regions_.begin(), regions_.end(), [&](const Region& r) { return r.id == id; });
    if (found == regions_.end()) return;
    mr = found->mr;
    regions_.erase(found);
    removals_.fetch_add(1, std::memory_order_release);
  }
  if (int error = api_.dereg_mr(mr); error != 0) {
    log(LogLevel::kError,
        "the RDMA device keeps memory that was given back (errno " + std::to_string(error) + ")");
  }
}

std::optional<Registrar::Region> Registrar::device_region_of(const void* data) const {
  std::lock_guard lock(mutex_);
  const Region* region = region_of(reinterpret_cast<uint64_t>(data));
  return region != nullptr && region->id == 0 ? std::optional(*region) : std::nullopt;
}

bool Registrar::reaches(DeviceStorage& memory) {
  if (memory.dma_buf() < 0) return false;
  auto among = [&](const auto& list) {
    return std::find(list.begin(), list.end(), &memory) != list.end();
  };
  {
    std::lock_guard lock(mutex_);
    if (among(reached_)) return true;
    if (among(refused_)) return false;
  }
  const Status added = add_device_memory(memory.dma_buf(), memory.offset(), memory.size(),
                                         reinterpret_cast<uint64_t>(memory.data()));
  memory.add_user(weak_from_this());
  {
    std::lock_guard lock(mutex_);
    (added.ok() ? reached_ : refused_).push_back(&memory);
  }
  (added.ok() ? device_memory_registered : device_memory_refused).add();
  if (added.ok()) return true;
  static LogThrottle throttle;
  throttle.log(LogLevel::kWarning,
               "device memory goes by host memory: " + std::string(added.detail()));
  return false;
}

// It is found no more, whatever the device says: others get its addresses.
void Registrar::device_memory_ended(const DeviceStorage& memory) noexcept {
  int error = 0;
  {
    // In one hold of the lock: close() comes before it or after it.
    std::lock_guard lock(mutex_);
    std::erase(refused_, &memory);
    if (std::erase(reached_, &memory) == 0) return;
    auto found = device_region_at(reinterpret_cast<uint64_t>(memory.data()));
    if (found == regions_.end()) return;
    ibv_mr* const mr = found->mr;
    regions_.erase(found);
    removals_.fetch_add(1, std::memory_order_release);
    error = api_.dereg_mr(mr);
    if (error == EBUSY) kept_.push_back(mr);
  }
  if (error != 0) {
    log(LogLevel::kError,
        "the RDMA device keeps device memory that has ended (errno " + std::to_string(error) + ")");
  }
}

Status Registrar::add_device_memory(int fd, uint64_t offset, uint64_t length, uint64_t iova) {
  uint64_t end = 0;
  if (length == 0 || __builtin_add_overflow(iova, length, &end))
    return invalid("device memory of no bytes, or beyond 2^64; give its length");
  // ibv_reg_dmabuf_mr(3).
  if (const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
      iova % page != offset % page)
    return invalid(
        "device memory's address is not as far into a page as its offset in the dma-buf; give "
        "DeviceMemory the offset that belongs to the address, or no address");
  {
    std::lock_guard lock(mutex_);
    for (const Region& region : regions_) {
      if (iova < region.base + region.length && region.base < end)
        return invalid(
            "a part of these addresses is registered already; wrap device memory once, and share "
            "that");
    }
  }
  int access =
      IBV_ACCESS_LOCAL_WRITE | (options_.windows ? static_cast<int>(IBV_ACCESS_MW_BIND) : 0);
  errno = 0;
  ibv_mr* mr = api_.reg_dmabuf_mr(pd_, offset, length, iova, fd, access);
  if (mr == nullptr) {
    registrations_refused.add();
    return dma_buf_error(length, errno);
  }
  insert({.base = iova, .length = length, .mr = mr, .dma_buf = fd, .offset = offset});
  return Status();
}

std::vector<Registrar::Region>::iterator Registrar::device_region_at(uint64_t base) {
  return std::find_if(regions_.begin(), regions_.end(),
                      [&](const Region& r) { return r.id == 0 && r.base == base; });
}

Status Registrar::remove_device_memory(uint64_t iova) {
  std::lock_guard lock(mutex_);
  auto found = device_region_at(iova);
  if (found == regions_.end()) return invalid("no device memory is registered at this address");
  if (int error = api_.dereg_mr(found->mr); error == EBUSY) {
    return Status(Code::kWrongState, Scope::kOperation, kOrigin,
                  "a peer still has a grant of this device memory; revoke it first", error);
  } else if (error != 0) {
    return Status(Code::kInternal, Scope::kOperation, kOrigin,
                  "the RDMA device does not deregister device memory", error);
  }
  regions_.erase(found);
  removals_.fetch_add(1, std::memory_order_release);
  return Status();
}

Registered Registrar::find(const void* data, uint64_t length) const {
  auto at = reinterpret_cast<uint64_t>(data);
  std::lock_guard lock(mutex_);
  const Region* region = region_of(at);
  if (region == nullptr) return {};
  return {.mr = region->mr, .length = std::min(length, region->length - (at - region->base))};
}

uint64_t Registrar::registered_bytes() const {
  std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (const Region& region : regions_) bytes += region.length;
  return bytes;
}

uint64_t Registrar::registrations() const {
  std::lock_guard lock(mutex_);
  return registrations_;
}

}  // namespace sluice::verbs
