// Memory shared with a peer: our control region, the peer's (read-only), and the
// peer's arena. The only place of this backend that maps memory.
#ifndef SLUICE_SHM_MAPPER_H_
#define SLUICE_SHM_MAPPER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include <sluice/base/descriptor.h>
#include <sluice/base/result.h>
#include <sluice/shm/connection_account.h>
#include <sluice/shm/extent_map.h>
#include <sluice/shm/ring.h>
#include <sluice/shm/socket.h>
#include <sluice/spi/link.h>

namespace sluice::shm {

// Our control region: a sealed memfd that the peer maps read-only. It begins with kFirstBytes of
// memory; the rest is found when the ring grows, and never by a page fault.
class OwnRegion {
 public:
  // Errors: kNoMemory (memory or descriptors; the detail says what to raise).
  static Result<std::unique_ptr<OwnRegion>> create(uint64_t probe);
  ~OwnRegion();
  SharedRegion* get() const { return region_; }
  // Finds the memory that a grown ring needs. False: there is none now.
  bool populate_grown();
  int fd() const { return fd_.value(); }
  void close_fd() { fd_.reset(); }  // after it was sent: the mapping stays

 private:
  SharedRegion* region_ = nullptr;
  bool populated_ = false;  // all of it
  Descriptor fd_;
};

// The peer's control region.
class PeerRegion {
 public:
  // The descriptor stays the caller's. Refuses memory that could be shrunk under us (SIGBUS), is
  // smaller, or does not hold `probe`. Errors: kCorrupt, kNoMemory, kUnsupported (another layout).
  static Result<std::unique_ptr<PeerRegion>> map(int memory, uint64_t probe);
  ~PeerRegion();
  const SharedRegion* get() const { return region_; }
  // The peer says that its ring has grown: all of it is there from now on, also of a peer that has
  // left holes. Errors: kNoMemory.
  Status populate_grown() const;

 private:
  const SharedRegion* region_ = nullptr;
};

// The peer's arena as far as it was announced: one range of addresses, so that a tensor which
// crosses extents there is contiguous here. The range is as long as what was announced asks for,
// and not as the peer's arena can become: if it no longer suffices, all extents are mapped once
// more in one of twice the length at least. The earlier one goes with its last view, so all ranges
// together are less than twice as long as the last. Counted: the link holds one reference, and each
// range with views another; views may end on any thread after the link.
class PeerArena final {
 public:
  // `length`: more is refused. `socket` is the connection's, shut for writing when the last view
  // ends: until then the peer keeps what it lent us out of use. `account` is charged; either may be
  // null.
  PeerArena(uint64_t length, std::shared_ptr<Socket> socket,
            std::shared_ptr<ConnectionAccount> account);

  // Maps an extent the peer announced; the descriptor stays the caller's. Errors: kCorrupt (not a
  // memfd sealed against shrinking and punching, without its memory, out of range), kNoMemory,
  // kTryAgain (the peer has as much as it may have).
  Status add_extent(uint32_t id, uint64_t arena_offset, uint64_t length, int memory);
  bool has_extent(uint32_t id) const { return extents_.contains(id); }
  // Errors: kCorrupt (never announced, or reaches outside of what was).
  Result<ImportedRun> import_run(const wire::Segment& segment);
  uint64_t mapped_bytes() const { return extents_.announced_bytes(); }
  // Addresses of the range that extents are mapped in now.
  uint64_t reserved_bytes() const { return range_ == nullptr ? 0 : range_->reserved_bytes; }
  // By the link, once: nothing more is imported.
  void drop() noexcept;

 private:
  // What a view holds. References for views are taken many at once while the link has the range:
  // to give one out, and to take it back in the context, is no atomic operation then.
  struct Range final : PeerMapping {
    void retain() noexcept override { references.fetch_add(1, std::memory_order_relaxed); }
    void drop() noexcept override { drop(1); }
    void drop_in_context() noexcept override {
      if (!of_link) [[unlikely]]
        return drop(1);
      ++spare;
    }
    // For a view. Requires: of_link.
    void give_out() noexcept {
      if (spare == 0) {
        references.fetch_add(kReferencesAtOnce, std::memory_order_relaxed);
        spare = kReferencesAtOnce;
      }
      --spare;
    }
    // By the link, once.
    void let_go() noexcept {
      of_link = false;
      drop(1 + std::exchange(spare, 0));
    }
    void drop(uint32_t count) noexcept;
    // Where the peer's offset is, or would be.
    std::byte* at(uint64_t offset) const { return base + (offset - start); }

    PeerArena* arena = nullptr;
    std::byte* reserved = nullptr;
    uint64_t reserved_bytes = 0;
    std::byte* base = nullptr;  // the first multiple of kExtentGranule in it: offset `start`
    uint64_t start = 0, end = 0;
    bool of_link = true;  // context's thread only, as spare
    uint32_t spare = 0;   // of references: given to no view
    std::atomic<uint32_t> references{1};

    static constexpr uint32_t kReferencesAtOnce = 256;
  };

  ~PeerArena();
  void let_go() noexcept;
  Status reach(const ExtentMap::Extent& extent, bool huge_pages);
  Result<Range*> reserve(uint64_t start, uint64_t end);
  Status map_again(const Range& range) const;
  Status map(const ExtentMap::Extent& extent, int memory);

  // Context's thread only.
  ExtentMap extents_;
  uint32_t last_id_ = 0;  // most recently imported: the usual next one
  ExtentMap::Extent last_extent_;
  Range* range_ = nullptr;
  uint64_t length_;
  std::shared_ptr<Socket> socket_;
  std::shared_ptr<ConnectionAccount> account_;
  std::atomic<uint32_t> references_{1};
};

}  // namespace sluice::shm

#endif  // SLUICE_SHM_MAPPER_H_
