// The memory of one protection domain: every arena extent registered once, without rights
// for any peer; what peers may do is said by windows. Knows no connection.
#ifndef SLUICE_VERBS_REGISTRAR_H_
#define SLUICE_VERBS_REGISTRAR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/allocator/device_storage.h>
#include <sluice/verbs/verbs_api.h>

namespace sluice::verbs {

// Registered memory that holds a given address: up to `length` bytes from there on.
struct Registered {
  ibv_mr* mr = nullptr;  // null: the memory is not in the arena
  uint64_t length = 0;
};

struct RegistrarOptions {
  bool windows = true;     // extents can have windows bound to them
  bool on_demand = false;  // the device can page in what it needs, where memory may not be pinned
};

// Thread: find() any; the extents' calls come from the arena, one at a time.
class Registrar final : public MemoryRegistrar,
                        public DeviceMemoryUser,
                        public std::enable_shared_from_this<Registrar> {
 public:
  // Registers what the arena has. Errors: kNoMemory (RLIMIT_MEMLOCK; the detail names what is
  // needed, what is allowed, and how to raise it), kInternal.
  static Result<std::shared_ptr<Registrar>> attach(VerbsApi& api, ibv_pd* pd,
                                                   std::shared_ptr<Arena> arena,
                                                   const RegistrarOptions& options);
  ~Registrar() override { close(); }
  // Deregisters everything, and leaves the arena. On return no thread is at the device, though one
  // that ends device memory may hold the registrar for longer.
  void close() noexcept;

  Registered find(const void* data, uint64_t length) const;
  // How often memory was removed so far. What was found before the last time is to be asked for
  // again. An extent of which somebody holds a part is not removed, and its addresses get other
  // memory only after the removal was counted: who holds what was found needs no lock to see that
  // it is still so. Of device memory remove_device_memory() requires that nobody uses it.
  uint64_t removals() const { return removals_.load(std::memory_order_acquire); }
  // Registers other memory of this process; the caller deregisters it. Pinned, which is
  // faster: the device never waits for a page. Where that is refused for want of memory to
  // lock and the device pages on demand, registered so, with nothing pinned. Also a part of device
  // memory that was added.
  // Errors: kNoMemory, as attach().
  Result<ibv_mr*> pin(void* data, uint64_t length, int access);

  // Device memory that somebody will use now: whether it is registered. It is, at the first call
  // that can do it, until its last holder is gone. What cannot be is tried and logged once.
  bool reaches(DeviceStorage& memory);
  // Device memory, given as a dma-buf (an accelerator's export): [offset, offset + length)
  // of it is registered as it is and found by its addresses, from `iova` on. It is pinned by
  // its exporter and counts towards no limit of ours. Ownership: `fd` stays the caller's; it is
  // open as long as the memory is added. Tested with a fake device only, never run on hardware.
  // Errors: kUnsupported (the kernel, the RDMA driver or the exporter cannot do it: the
  // detail says which to look at), kInvalidArgument (no dma-buf, or no such range of it; the
  // addresses are registered already), kNoMemory, kInternal.
  Status add_device_memory(int fd, uint64_t offset, uint64_t length, uint64_t iova);
  // Requires: no transfer uses it. Errors: kInvalidArgument (no such memory), kWrongState (a
  // window to it is open: revoke the grant first), kInternal. It stays registered then.
  Status remove_device_memory(uint64_t iova);

  uint64_t registered_bytes() const;
  uint64_t registrations() const;
  // Those of them that are paged in on demand.
  uint64_t on_demand_registrations() const {
    return on_demand_registrations_.load(std::memory_order_relaxed);
  }

  // DeviceMemoryUser.
  void device_memory_ended(const DeviceStorage& memory) noexcept override;

  // MemoryRegistrar.
  Status extent_added(ExtentId id, std::byte* base, size_t length) override;
  void extent_removed(ExtentId id) noexcept override;

 private:
  Registrar(VerbsApi& api, ibv_pd* pd, std::shared_ptr<Arena> arena,
            const RegistrarOptions& options)
      : api_(api), pd_(pd), arena_(std::move(arena)), options_(options) {}

  struct Region {
    ExtentId id = 0;  // 0: device memory
    uint64_t base = 0, length = 0;
    ibv_mr* mr = nullptr;
    int dma_buf = -1;     // of device memory
    uint64_t offset = 0;  // in it, of `base`
  };
  void insert(const Region& region);
  // regions_.end(): none. Requires: the lock.
  std::vector<Region>::iterator device_region_at(uint64_t base);
  // Null: none. Requires: the lock.
  const Region* region_of(uint64_t at) const;
  std::optional<Region> device_region_of(const void* data) const;

  VerbsApi& api_;
  ibv_pd* pd_;
  std::shared_ptr<Arena> arena_;
  RegistrarOptions options_;
  mutable std::mutex mutex_;
  std::vector<Region> regions_;                          // by base; few
  std::vector<const DeviceStorage*> reached_, refused_;  // few
  std::vector<ibv_mr*> kept_;                            // that ended, but was in use at the device
  uint64_t registrations_ = 0;
  std::atomic<uint64_t> on_demand_registrations_{0}, removals_{0};
};

}  // namespace sluice::verbs

#endif  // SLUICE_VERBS_REGISTRAR_H_
