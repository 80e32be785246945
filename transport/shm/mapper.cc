#include <sluice/shm/mapper.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <new>
#include <string>
#include <utility>

#include <sluice/base/checked.h>
#include <sluice/base/map_over.h>

namespace sluice::shm {
namespace {

constexpr const char* kOrigin = "shm/mapper";
// A peer may not make us reserve more addresses than this: 2^46 of the 2^47 there are.
constexpr uint64_t kLargestArena = uint64_t{1} << 46;
constexpr uint64_t kExtentGranule = 2u << 20;
// Against SIGBUS: the memory can neither shrink nor lose pages while it is mapped, nor
// become one that refuses to be.
constexpr int kNeededSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

Status corrupt(const std::string& why) { return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, why); }
Status no_memory(const std::string& why) { return Status(Code::kNoMemory, Scope::kEndpoint, kOrigin, why, errno); }

Status check_memfd(int fd, uint64_t length) {
  int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kNeededSeals) != kNeededSeals) {
    return corrupt("the peer passed a descriptor that is not a memfd sealed against shrinking");
  }
  struct stat info;
  if (::fstat(fd, &info) != 0 || info.st_size < 0 || static_cast<uint64_t>(info.st_size) < length) {
    return corrupt("the peer passed memory that is smaller than it says");
  }
  // Larger huge pages cannot lie anywhere in an arena. (Not stat's st_blksize: that of plain memory may be larger, too.)
  struct statfs system;
  if (::fstatfs(fd, &system) != 0) return no_memory("the peer's memory cannot be asked for its pages");
  if (system.f_type == HUGETLBFS_MAGIC && static_cast<uint64_t>(system.f_bsize) > kExtentGranule) {
    return corrupt("the peer passed memory whose pages are larger than an extent's unit of 2 MiB");
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<OwnRegion>> OwnRegion::create(uint64_t probe) {
  auto own = std::make_unique<OwnRegion>();
  own->fd_ = ::memfd_create("sluice-control", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (own->fd_ < 0) return no_memory("no descriptor for a control region; raise ulimit -n");
  // A sparse file would mean SIGBUS later.
  if (::ftruncate(own->fd_, sizeof(SharedRegion)) != 0 || ::fallocate(own->fd_, 0, 0, sizeof(SharedRegion)) != 0) {
    return no_memory("no memory for a control region of " + std::to_string(sizeof(SharedRegion)) + " bytes");
  }
  void* address = ::mmap(nullptr, sizeof(SharedRegion), PROT_READ | PROT_WRITE, MAP_SHARED, own->fd_, 0);
  if (address == MAP_FAILED) return no_memory("a control region cannot be mapped");
  ::madvise(address, sizeof(SharedRegion), MADV_DONTFORK);
  own->region_ = new (address) SharedRegion;
  own->region_->layout = kRegionLayout;
  own->region_->probe = probe;
  if (::fcntl(own->fd_, F_ADD_SEALS, kNeededSeals) != 0) return no_memory("a control region cannot be sealed");
  return own;
}

OwnRegion::~OwnRegion() {
  close_fd();
  if (region_ != nullptr) ::munmap(region_, sizeof(SharedRegion));
}

void OwnRegion::close_fd() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Result<std::unique_ptr<PeerRegion>> PeerRegion::map(int fd, uint64_t probe) {
  Status status = check_memfd(fd, sizeof(SharedRegion));
  void* address = status.ok() ? ::mmap(nullptr, sizeof(SharedRegion), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (status.ok() && address == MAP_FAILED) status = no_memory("the peer's control region cannot be mapped");
  ::close(fd);
  SLUICE_RETURN_IF_ERROR(status);
  ::madvise(address, sizeof(SharedRegion), MADV_DONTFORK);
  auto peer = std::make_unique<PeerRegion>();
  peer->region_ = static_cast<const SharedRegion*>(address);
  if (peer->region_->layout != kRegionLayout) return corrupt("the peer's control region has another layout");
  if (peer->region_->probe != probe) return corrupt("the peer's control region is not the one it announced");
  return peer;
}

PeerRegion::~PeerRegion() {
  if (region_ != nullptr) ::munmap(const_cast<SharedRegion*>(region_), sizeof(SharedRegion));
}

Status PeerArena::reserve() {
  if (base_ != nullptr) return Status();
  if (length_ == 0 || length_ > kLargestArena) return corrupt("the peer's arena is of impossible size " + std::to_string(length_));
  // Extents lie at multiples of a huge page in the arena: so must they here, or the kernel
  // maps the owner's huge pages 4 KiB at a time.
  reserved_bytes_ = length_ + kExtentGranule;
  void* address = ::mmap(nullptr, reserved_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return no_memory("no address space for the peer's arena of " + std::to_string(length_) + " bytes");
  ::madvise(address, reserved_bytes_, MADV_DONTFORK);
  reserved_ = static_cast<std::byte*>(address);
  base_ = reserved_ + (kExtentGranule - reinterpret_cast<uintptr_t>(address) % kExtentGranule) % kExtentGranule;
  return Status();
}

Status PeerArena::add_extent(uint32_t id, uint64_t arena_offset, uint64_t length, int fd) {
  Status status;
  if (!range_fits(arena_offset, length, length_) || length == 0 || arena_offset % kExtentGranule != 0 || length % kExtentGranule != 0) {
    status = corrupt("extent " + std::to_string(id) + " lies outside the peer's arena");
  }
  if (status.ok() && places_.contains(id)) status = corrupt("extent " + std::to_string(id) + " was announced twice");
  if (status.ok()) status = check_memfd(fd, length);
  if (status.ok()) status = reserve();
  if (status.ok()) {
    std::byte* address = base_ + arena_offset;
    if (errno = map_over(address, length, PROT_READ, fd); errno != 0) {
      status = no_memory("extent of " + std::to_string(length >> 20) + " MiB cannot be mapped; see vm.max_map_count");
    } else {
      ::madvise(address, length, MADV_DONTFORK);
      ::madvise(address, length, MADV_HUGEPAGE);
    }
  }
  ::close(fd);
  SLUICE_RETURN_IF_ERROR(status);
  // What lay there before was given back by its owner.
  for (auto old = by_offset_.begin(); old != by_offset_.end();) {
    const Place& place = places_.at(old->second);
    bool overlaps = place.arena_offset < arena_offset + length && arena_offset < place.arena_offset + place.length;
    if (!overlaps) {
      ++old;
      continue;
    }
    mapped_ -= place.length;
    places_.erase(old->second);
    old = by_offset_.erase(old);
  }
  places_[id] = {arena_offset, length};
  by_offset_[arena_offset] = id;
  mapped_ += length;
  last_id_ = 0;
  return Status();
}

Result<proto::ImportedRun> PeerArena::import_run(const wire::Segment& segment) {
  if (segment.extent != last_id_ || last_id_ == 0) {
    auto found = places_.find(segment.extent);
    if (found == places_.end()) return corrupt("memory of extent " + std::to_string(segment.extent) + ", which was never announced");
    last_id_ = segment.extent;
    last_place_ = found->second;
  }
  const Place& place = last_place_;
  if (segment.offset >= place.length) return corrupt("a run that starts beyond its extent");
  uint64_t start = place.arena_offset + segment.offset;
  uint64_t covered = place.length - segment.offset;
  // A run may go on into the extents that follow without a gap.
  while (covered < segment.length) {
    auto next = by_offset_.find(start + covered);
    if (next == by_offset_.end()) return corrupt("a run that reaches beyond what was announced");
    covered += places_.at(next->second).length;
  }
  retain();
  return proto::ImportedRun{.data = base_ + start, .mapping = this};
}

void PeerArena::drop() noexcept {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

PeerArena::~PeerArena() {
  if (reserved_ != nullptr) ::munmap(reserved_, reserved_bytes_);
  if (life_fd_ < 0) return;
  // The link has ended (it held a reference): the peer may have its loans back, also while
  // our side of the socket waits for our own.
  ::shutdown(life_fd_, SHUT_WR);
  ::close(life_fd_);
}

}  // namespace sluice::shm
