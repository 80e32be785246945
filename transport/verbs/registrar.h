// The memory of one protection domain: every arena extent registered once, without rights
// for any peer; what peers may do is said by windows. Knows no connection.
#ifndef SLUICE_VERBS_REGISTRAR_H_
#define SLUICE_VERBS_REGISTRAR_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/verbs/verbs_api.h>

namespace sluice::verbs {

// Registered memory that holds a given address: up to `length` bytes from there on.
struct Registered {
  ibv_mr* mr = nullptr;  // null: the memory is not in the arena
  uint64_t length = 0;
};

struct RegistrarOptions {
  bool windows = true;    // extents can have windows bound to them
  bool on_demand = false; // the device pages in what it needs: nothing is pinned
};

// Thread: find() any; the extents' calls come from the arena, one at a time.
class Registrar final : public MemoryRegistrar {
 public:
  // Registers what the arena has. Errors: kNoMemory (RLIMIT_MEMLOCK; the detail names what is
  // needed, what is allowed, and how to raise it), kInternal.
  static Result<std::unique_ptr<Registrar>> attach(VerbsApi& api, ibv_pd* pd, std::shared_ptr<Arena> arena,
                                                   const RegistrarOptions& options);
  ~Registrar() override;

  Registered find(const void* data, uint64_t length) const;
  // Device memory, given as a dma-buf (an accelerator's export): registered as it is, and
  // found by its addresses from `iova` on. Not run on hardware by us.
  Status add_device_memory(int fd, uint64_t offset, uint64_t length, uint64_t iova);
  void remove_device_memory(uint64_t iova);

  uint64_t registered_bytes() const;
  uint64_t registrations() const;

  // MemoryRegistrar.
  Status extent_added(ExtentId id, std::byte* base, size_t length) override;
  void extent_removed(ExtentId id) noexcept override;

 private:
  Registrar(VerbsApi& api, ibv_pd* pd, std::shared_ptr<Arena> arena, const RegistrarOptions& options)
      : api_(api), pd_(pd), arena_(std::move(arena)), options_(options) {}

  struct Region {
    ExtentId id = 0;  // 0: device memory
    uint64_t base = 0, length = 0;
    ibv_mr* mr = nullptr;
  };

  VerbsApi& api_;
  ibv_pd* pd_;
  std::shared_ptr<Arena> arena_;
  RegistrarOptions options_;
  mutable std::mutex mutex_;
  std::vector<Region> regions_;  // by base; few
  uint64_t registrations_ = 0;
};

// Why the system refused to pin `more` bytes, in words, with the remedy.
Status memlock_error(const char* origin, uint64_t more, uint64_t pinned, int os_error);

}  // namespace sluice::verbs

#endif  // SLUICE_VERBS_REGISTRAR_H_
