#include <sluice/verbs/registrar.h>

#include <errno.h>
#include <sys/resource.h>

#include <algorithm>

#include <sluice/base/clock.h>
#include <sluice/base/counters.h>
#include <sluice/base/log.h>

namespace sluice::verbs {
namespace {

constexpr const char* kOrigin = "verbs/registrar";

Counter extents_registered("verbs.extents_registered");
Counter registrations_refused("verbs.registrations_refused");

std::string mebibytes(uint64_t bytes) { return std::to_string((bytes + (1u << 20) - 1) >> 20) + " MiB"; }

}  // namespace

Status memlock_error(const char* origin, uint64_t more, uint64_t pinned, int os_error) {
  rlimit limit{};
  bool limited = ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  std::string why = "the RDMA device cannot register " + mebibytes(more) + " beside the " + mebibytes(pinned) + " it has";
  if (os_error == ENOMEM && limited) {
    why += ": this process may lock " + std::to_string(limit.rlim_cur >> 10) +
           " KiB (RLIMIT_MEMLOCK); raise it with `ulimit -l unlimited`, in containers with `--ulimit memlock=-1`, in services with LimitMEMLOCK=infinity";
  } else if (os_error == ENOMEM) {
    why += ": out of memory or of the device's entries for it; use a smaller arena (SLUICE_ARENA_LIMIT)";
  }
  return Status(Code::kNoMemory, Scope::kOperation, origin, why, os_error);
}

Result<std::unique_ptr<Registrar>> Registrar::attach(VerbsApi& api, ibv_pd* pd, std::shared_ptr<Arena> arena,
                                                     const RegistrarOptions& options) {
  Instant start = now();
  std::unique_ptr<Registrar> registrar(new Registrar(api, pd, std::move(arena), options));
  Status attached = registrar->arena_->attach(*registrar);
  if (!attached.ok()) {
    registrar->arena_ = nullptr;
    return attached;
  }
  if (log_enabled(LogLevel::kInfo)) {
    auto took = std::chrono::duration_cast<std::chrono::microseconds>(now() - start).count();
    log(LogLevel::kInfo, "registered " + mebibytes(registrar->registered_bytes()) + " of the arena with the RDMA device in " +
                             std::to_string(took) + " us");
  }
  return registrar;
}

Registrar::~Registrar() {
  if (arena_ != nullptr) arena_->detach(*this);
  for (Region& region : regions_) (void)api_.dereg_mr(region.mr);
}

Status Registrar::extent_added(ExtentId id, std::byte* base, size_t length) {
  int access = IBV_ACCESS_LOCAL_WRITE;
  if (options_.windows) access |= IBV_ACCESS_MW_BIND;
  if (options_.on_demand) access |= IBV_ACCESS_ON_DEMAND;
  errno = 0;
  ibv_mr* mr = api_.reg_mr(pd_, base, length, access);
  if (mr == nullptr) {
    registrations_refused.add();
    return memlock_error(kOrigin, length, registered_bytes(), errno);
  }
  extents_registered.add();
  std::lock_guard lock(mutex_);
  Region region{.id = id, .base = reinterpret_cast<uint64_t>(base), .length = length, .mr = mr};
  regions_.insert(std::upper_bound(regions_.begin(), regions_.end(), region.base,
                                   [](uint64_t at, const Region& r) { return at < r.base; }),
                  region);
  ++registrations_;
  return Status();
}

void Registrar::extent_removed(ExtentId id) noexcept {
  ibv_mr* mr = nullptr;
  {
    std::lock_guard lock(mutex_);
    auto found = std::find_if(regions_.begin(), regions_.end(), [&](const Region& r) { return r.id == id; });
    if (found == regions_.end()) return;
    mr = found->mr;
    regions_.erase(found);
  }
  if (int error = api_.dereg_mr(mr); error != 0) {
    log(LogLevel::kError, "the RDMA device keeps memory that was given back (errno " + std::to_string(error) + ")");
  }
}

Status Registrar::add_device_memory(int fd, uint64_t offset, uint64_t length, uint64_t iova) {
  int access = IBV_ACCESS_LOCAL_WRITE | (options_.windows ? static_cast<int>(IBV_ACCESS_MW_BIND) : 0);
  errno = 0;
  ibv_mr* mr = api_.reg_dmabuf_mr(pd_, offset, length, iova, fd, access);
  if (mr == nullptr) {
    if (errno == EOPNOTSUPP || errno == ENOSYS) {
      return Status(Code::kUnsupported, Scope::kOperation, kOrigin, "the RDMA driver cannot register dma-bufs; copy to host memory first", errno);
    }
    return memlock_error(kOrigin, length, registered_bytes(), errno);
  }
  std::lock_guard lock(mutex_);
  Region region{.id = 0, .base = iova, .length = length, .mr = mr};
  regions_.insert(std::upper_bound(regions_.begin(), regions_.end(), iova, [](uint64_t at, const Region& r) { return at < r.base; }),
                  region);
  ++registrations_;
  return Status();
}

void Registrar::remove_device_memory(uint64_t iova) {
  ibv_mr* mr = nullptr;
  {
    std::lock_guard lock(mutex_);
    auto found = std::find_if(regions_.begin(), regions_.end(), [&](const Region& r) { return r.id == 0 && r.base == iova; });
    if (found == regions_.end()) return;
    mr = found->mr;
    regions_.erase(found);
  }
  (void)api_.dereg_mr(mr);
}

Registered Registrar::find(const void* data, uint64_t length) const {
  auto at = reinterpret_cast<uint64_t>(data);
  std::lock_guard lock(mutex_);
  auto after = std::upper_bound(regions_.begin(), regions_.end(), at, [](uint64_t a, const Region& r) { return a < r.base; });
  if (after == regions_.begin()) return {};
  const Region& region = *(after - 1);
  if (at - region.base >= region.length) return {};
  return {.mr = region.mr, .length = std::min(length, region.length - (at - region.base))};
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
