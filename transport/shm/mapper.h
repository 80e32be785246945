// Memory shared with a peer: our control region, the peer's (read-only), and the
// peer's arena. The only place of this backend that maps memory.
#ifndef SLUICE_SHM_MAPPER_H_
#define SLUICE_SHM_MAPPER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include <sluice/base/result.h>
#include <sluice/proto/link.h>
#include <sluice/shm/ring.h>

namespace sluice::shm {

// Our control region: a sealed memfd that the peer maps read-only.
class OwnRegion {
 public:
  // Errors: kNoMemory (memory or descriptors; the detail says what to raise).
  static Result<std::unique_ptr<OwnRegion>> create(uint64_t probe);
  ~OwnRegion();
  SharedRegion* get() const { return region_; }
  int fd() const { return fd_; }
  void close_fd();  // after it was sent: the mapping stays

 private:
  SharedRegion* region_ = nullptr;
  int fd_ = -1;
};

// The peer's control region.
class PeerRegion {
 public:
  // Takes the descriptor. Refuses memory that could be shrunk under us (SIGBUS), is of
  // another size, or does not hold `probe`. Errors: kCorrupt, kNoMemory.
  static Result<std::unique_ptr<PeerRegion>> map(int fd, uint64_t probe);
  ~PeerRegion();
  const SharedRegion* get() const { return region_; }

 private:
  const SharedRegion* region_ = nullptr;
};

// The peer's arena as far as it was announced: one range of addresses, so that a tensor
// which crosses extents there is contiguous here. Counted: the link holds one reference
// and every view another; views may end on any thread after the link.
class PeerArena final : public proto::PeerMapping {
 public:
  // Reserves `length` bytes of addresses at the first extent. `life_fd` is a duplicate of
  // the connection's socket, shut for writing when the last view ends: until then the peer
  // keeps what it lent us out of use.
  PeerArena(uint64_t length, int life_fd) : length_(length), life_fd_(life_fd) {}

  // Maps an extent the peer announced; takes the descriptor. Errors: kCorrupt (not a
  // memfd sealed against shrinking and punching, out of range), kNoMemory.
  Status add_extent(uint32_t id, uint64_t arena_offset, uint64_t length, int fd);
  bool has_extent(uint32_t id) const { return places_.contains(id); }
  // Errors: kCorrupt (never announced, or reaches outside of what was).
  Result<proto::ImportedRun> import_run(const wire::Segment& segment);
  uint64_t mapped_bytes() const { return mapped_; }

  void retain() noexcept override { references_.fetch_add(1, std::memory_order_relaxed); }
  void drop() noexcept override;

 private:
  ~PeerArena();
  Status reserve();

  struct Place {
    uint64_t arena_offset;
    uint64_t length;
  };
  // Context's thread only.
  std::map<uint32_t, Place> places_;       // by extent id
  std::map<uint64_t, uint32_t> by_offset_; // arena offset -> extent id
  uint32_t last_id_ = 0;                   // most recently imported: the usual next one
  Place last_place_{};
  std::byte* reserved_ = nullptr;
  uint64_t reserved_bytes_ = 0;
  std::byte* base_ = nullptr;  // the first multiple of kExtentGranule in it
  uint64_t length_;
  uint64_t mapped_ = 0;
  int life_fd_;
  std::atomic<uint32_t> references_{1};
};

}  // namespace sluice::shm

#endif  // SLUICE_SHM_MAPPER_H_
