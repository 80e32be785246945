#include <sluice/shm/mapper.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <sluice/base/checked.h>
#include <sluice/base/map_over.h>

namespace sluice::shm {
namespace {

constexpr const char* kOrigin = "shm/mapper";
#ifndef MFD_NOEXEC_SEAL
constexpr unsigned MFD_NOEXEC_SEAL = 8;  // Linux 6.3
#endif
// A peer may not make us reserve more addresses than this: 2^46 of the 2^47 there are.
constexpr uint64_t kLargestArena = uint64_t{1} << 46;
constexpr uint64_t kExtentGranule = 2u << 20;
// Addresses for a peer's arena: room for its first three extents by default.
constexpr uint64_t kLeastRange = 64u << 20;
// When so many extents have to be mapped again, all addresses that the peer may use are taken, for
// good: mapping one again takes 4 us, and they are mapped in one turn.
constexpr uint64_t kMostMappedAgain = 512;
constexpr uint64_t kStatBlockBytes = 512;  // stat(2)
// Against SIGBUS: the memory can neither shrink nor lose pages while it is mapped, nor
// become one that refuses to be.
constexpr int kNeededSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

Status corrupt(const std::string& why) {
  return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, why);
}
Status no_memory(const std::string& why) {
  return Status(Code::kNoMemory, Scope::kEndpoint, kOrigin, why, errno);
}

// The first `populated` of `length` bytes have to be there. True: of pages that were reserved as
// huge ones. Errors: kCorrupt; kNoMemory (the kernel says nothing of its pages).
Result<bool> check_memfd(int fd, uint64_t length, uint64_t populated) {
  int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kNeededSeals) != kNeededSeals) {
    return corrupt("the peer passed a descriptor that is not a memfd sealed against shrinking");
  }
  struct stat info;
  if (::fstat(fd, &info) != 0 || info.st_size < 0 || static_cast<uint64_t>(info.st_size) < length) {
    return corrupt("the peer passed memory that is smaller than it says");
  }
  // Larger huge pages cannot lie anywhere in an arena. (Not stat's st_blksize: that of plain memory
  // may be larger, too.)
  struct statfs system;
  if (::fstatfs(fd, &system) != 0)
    return no_memory("the peer's memory cannot be asked for its pages");
  if (system.f_type == HUGETLBFS_MAGIC && static_cast<uint64_t>(system.f_bsize) > kExtentGranule) {
    return corrupt("the peer passed memory whose pages are larger than an extent's unit of 2 MiB");
  }
  // All of it is there: a page that has to be found when we read would be ours to find, and SIGBUS
  // without one.
  if (static_cast<uint64_t>(info.st_blocks) < populated / kStatBlockBytes) {
    return corrupt("the peer passed a sparse memfd: " + std::to_string(info.st_blocks) +
                   " blocks of 512 bytes where it says " + std::to_string(populated) + " bytes");
  }
  return system.f_type == HUGETLBFS_MAGIC;
}

Status other_layout() {
  return Status(
      Code::kUnsupported, Scope::kEndpoint, kOrigin,
      "the peer's control region has another layout; both ends need the same version of sluice");
}

// Whether memory that is too small for our layout says that it has another one.
bool has_other_layout(int fd) {
  struct stat info;
  if (::fstat(fd, &info) != 0 || info.st_size < static_cast<off_t>(kFirstBytes) ||
      info.st_size >= static_cast<off_t>(sizeof(SharedRegion)))
    return false;
  if (!check_memfd(fd, kFirstBytes, kFirstBytes).ok()) return false;
  void* address = ::mmap(nullptr, kFirstBytes, PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return false;
  uint64_t layout;
  std::memcpy(&layout, address, sizeof(layout));
  ::munmap(address, kFirstBytes);
  return layout != kRegionLayout;
}

// Linux before 6.3 does not know that memory may be told to hold no program, and 6.3 to 6.5 with
// vm.memfd_noexec=2 make none without that.
int create_memfd() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = ::memfd_create("sluice-control", kFlags | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create("sluice-control", kFlags);
  return fd;
}

std::byte* grown_part(const SharedRegion* region) {
  return reinterpret_cast<std::byte*>(const_cast<SharedRegion*>(region)) + kFirstBytes;
}

}  // namespace

Result<std::unique_ptr<OwnRegion>> OwnRegion::create(uint64_t probe) {
  auto own = std::make_unique<OwnRegion>();
  own->fd_ = Descriptor(create_memfd());
  if (!own->fd_) return no_memory("no descriptor for a control region; raise ulimit -n");
  const int fd = own->fd();
  // A page that is used before it was asked for would mean SIGBUS.
  if (::ftruncate(fd, sizeof(SharedRegion)) != 0 || ::fallocate(fd, 0, 0, kFirstBytes) != 0) {
    return no_memory("no memory for a control region of " + std::to_string(kFirstBytes) + " bytes");
  }
  void* address = ::mmap(nullptr, sizeof(SharedRegion), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return no_memory("a control region cannot be mapped");
  ::madvise(address, sizeof(SharedRegion), MADV_DONTFORK);
  own->region_ = static_cast<SharedRegion*>(address);  // of zero bytes, as it is to begin
  // Linux 5.14 finds memory for a range that is mapped. Before that it is asked for now.
  if (::madvise(address, kFirstBytes, MADV_POPULATE_WRITE) != 0) {
    if (::fallocate(fd, 0, 0, sizeof(SharedRegion)) != 0) {
      return no_memory("no memory for a control region of " + std::to_string(sizeof(SharedRegion)) +
                       " bytes");
    }
    own->populated_ = true;
  }
  own->region_->layout = kRegionLayout;
  own->region_->probe = probe;
  if (::fcntl(fd, F_ADD_SEALS, kNeededSeals) != 0)
    return no_memory("a control region cannot be sealed");
  return own;
}

bool OwnRegion::populate_grown() {
  if (!populated_)
    populated_ = ::madvise(grown_part(region_), sizeof(region_->grown), MADV_POPULATE_WRITE) == 0;
  return populated_;
}

OwnRegion::~OwnRegion() {
  if (region_ != nullptr) ::munmap(region_, sizeof(SharedRegion));
}

Result<std::unique_ptr<PeerRegion>> PeerRegion::map(int memory, uint64_t probe) {
  if (has_other_layout(memory)) return other_layout();
  SLUICE_RETURN_IF_ERROR(check_memfd(memory, sizeof(SharedRegion), kFirstBytes).status());
  void* address = ::mmap(nullptr, sizeof(SharedRegion), PROT_READ, MAP_SHARED, memory, 0);
  if (address == MAP_FAILED) return no_memory("the peer's control region cannot be mapped");
  ::madvise(address, sizeof(SharedRegion), MADV_DONTFORK);
  auto peer = std::make_unique<PeerRegion>();
  peer->region_ = static_cast<const SharedRegion*>(address);
  if (peer->region_->layout != kRegionLayout) return other_layout();
  if (peer->region_->probe != probe)
    return corrupt("the peer's control region is not the one it announced");
  return peer;
}

Status PeerRegion::populate_grown() const {
  if (::madvise(grown_part(region_), sizeof(region_->grown), MADV_POPULATE_READ) == 0 ||
      errno == EINVAL)  // Linux before 5.14, where its owner has populated all of it
    return Status();
  return no_memory("no memory for the peer's grown ring");
}

PeerRegion::~PeerRegion() {
  if (region_ != nullptr) ::munmap(const_cast<SharedRegion*>(region_), sizeof(SharedRegion));
}

PeerArena::PeerArena(uint64_t length, std::shared_ptr<Socket> socket,
                     std::shared_ptr<ConnectionAccount> account)
    : length_(length), socket_(std::move(socket)), account_(std::move(account)) {
  if (account_) account_->mapped();
}

// Addresses for [start, end) of the peer's arena.
Result<PeerArena::Range*> PeerArena::reserve(uint64_t start, uint64_t end) {
  // Extents lie at multiples of a huge page in the arena: so must they here, or the kernel
  // maps the owner's huge pages 4 KiB at a time.
  const uint64_t bytes = end - start + kExtentGranule;
  void* address =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return no_memory("no address space for " + std::to_string(end - start) +
                     " bytes of the peer's arena; raise ulimit -v");
  }
  ::madvise(address, bytes, MADV_DONTFORK);
  auto* range = new Range;
  range->arena = this;
  range->reserved = static_cast<std::byte*>(address);
  range->reserved_bytes = bytes;
  range->base =
      range->reserved +
      (kExtentGranule - reinterpret_cast<uintptr_t>(address) % kExtentGranule) % kExtentGranule;
  range->start = start;
  range->end = end;
  references_.fetch_add(1, std::memory_order_relaxed);
  return range;
}

// What is mapped in the present range, in another one as well.
Status PeerArena::map_again(const Range& range) const {
  Status status;
  extents_.for_each([&](const ExtentMap::Extent& extent) {
    // Of length 0: mapped once more, not moved (mremap(2)). The advice goes with it.
    if (status.ok() &&
        ::mremap(range_->at(extent.offset), 0, extent.length, MREMAP_MAYMOVE | MREMAP_FIXED,
                 range.at(extent.offset)) == MAP_FAILED)
      status = no_memory("extents of the peer cannot be mapped together; see vm.max_map_count");
  });
  return status;
}

// Makes the range have the extent too. Huge pages that are reserved cannot be mapped once more
// (hugetlb and mremap(2)): the first of those takes all the addresses that the peer may use.
Status PeerArena::reach(const ExtentMap::Extent& extent, bool huge_pages) {
  const bool all = huge_pages || extents_.pieces() >= kMostMappedAgain;
  uint64_t start = all ? 0 : extent.offset;
  uint64_t end = all ? length_ : extent.offset + extent.length;
  uint64_t least = kLeastRange;
  if (range_ != nullptr) {
    if (start >= range_->start && end <= range_->end) return Status();
    start = std::min(start, range_->start);
    end = std::max(end, range_->end);
    least = 2 * (range_->end - range_->start);
  }
  // Upwards first: an arena grows that way.
  if (end - start < least) end = std::min(length_, start + least);
  if (end - start < least) start = end - std::min(end, least);
  const uint64_t more = end - start + kExtentGranule - reserved_bytes();
  if (account_) SLUICE_RETURN_IF_ERROR(account_->take_addresses(more));
  Result<Range*> made = reserve(start, end);
  Status status = made.status();
  if (made.ok() && range_ != nullptr) status = map_again(**made);
  if (!status.ok()) {
    if (account_) account_->give_addresses(more);
    if (made.ok()) (*made)->let_go();
    return status;
  }
  if (range_ != nullptr) range_->let_go();
  range_ = *made;
  return Status();
}

Status PeerArena::map(const ExtentMap::Extent& extent, int memory) {
  std::byte* address = range_->at(extent.offset);
  if (errno = map_over(address, extent.length, PROT_READ, memory); errno != 0) {
    return no_memory("extent of " + std::to_string(extent.length >> 20) +
                     " MiB cannot be mapped; see vm.max_map_count");
  }
  ::madvise(address, extent.length, MADV_DONTFORK);
  ::madvise(address, extent.length, MADV_HUGEPAGE);
  return Status();
}

Status PeerArena::add_extent(uint32_t id, uint64_t arena_offset, uint64_t length, int memory) {
  if (length_ == 0 || length_ > kLargestArena)
    return corrupt("the peer's arena is of impossible size " + std::to_string(length_));
  if (!range_fits(arena_offset, length, length_) || length == 0 ||
      arena_offset % kExtentGranule != 0 || length % kExtentGranule != 0) {
    return corrupt("extent " + std::to_string(id) + " lies outside the peer's arena");
  }
  if (extents_.contains(id))
    return corrupt("extent " + std::to_string(id) + " was announced twice");
  SLUICE_TRY(const bool huge_pages, check_memfd(memory, length, length));
  const ExtentMap::Extent extent{arena_offset, length};
  SLUICE_RETURN_IF_ERROR(reach(extent, huge_pages));
  const int64_t more = extents_.pieces_added_by(extent);
  if (account_ && more > 0)
    SLUICE_RETURN_IF_ERROR(account_->take_extents(static_cast<uint64_t>(more)));
  Status mapped = map(extent, memory);
  if (!mapped.ok()) {
    if (account_ && more > 0) account_->give_extents(static_cast<uint64_t>(more));
    return mapped;
  }
  if (account_ && more < 0) account_->give_extents(static_cast<uint64_t>(-more));
  extents_.add(id, extent);
  last_id_ = 0;
  return Status();
}

Result<ImportedRun> PeerArena::import_run(const wire::Segment& segment) {
  if (segment.extent != last_id_ || last_id_ == 0) {
    const ExtentMap::Extent* found = extents_.find(segment.extent);
    if (found == nullptr)
      return corrupt("memory of extent " + std::to_string(segment.extent) +
                     ", which was never announced");
    last_id_ = segment.extent;
    last_extent_ = *found;
  }
  if (segment.offset >= last_extent_.length) return corrupt("a run that starts beyond its extent");
  const uint64_t start = last_extent_.offset + segment.offset;
  // A run may go on into the extents that follow without a gap.
  bool within = segment.length <= last_extent_.length - segment.offset;
  if (!within && !extents_.covers(start, segment.length))
    return corrupt("a run that reaches beyond what was announced");
  range_->give_out();
  return ImportedRun{.data = range_->at(start), .mapping = range_};
}

void PeerArena::drop() noexcept {
  if (Range* range = std::exchange(range_, nullptr)) range->let_go();
  let_go();
}

void PeerArena::let_go() noexcept {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void PeerArena::Range::drop(uint32_t count) noexcept {
  if (references.fetch_sub(count, std::memory_order_acq_rel) != count) return;
  ::munmap(reserved, reserved_bytes);
  PeerArena* owner = arena;
  delete this;
  owner->let_go();
}

PeerArena::~PeerArena() {
  // The link has ended (it held a reference): the peer may have its loans back, also while
  // our side of the socket waits for our own.
  if (socket_) ::shutdown(socket_->fd(), SHUT_WR);
  if (account_) account_->unmapped();
}

}  // namespace sluice::shm
