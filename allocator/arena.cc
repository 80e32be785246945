// The handle: options, the warm path, look-ups, figures.
#include <sluice/allocator/arena.h>
#include <sluice/allocator/pending_allocation.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include <sluice/base/checked.h>
#include <sluice/base/settings.h>

#include "allocator/arena_state.h"
#include "allocator/machine_memory.h"

namespace sluice {
namespace {

constexpr const char* kOrigin = "allocator/arena";

Status invalid(const std::string& why) {
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, why);
}

Status check_options(const ArenaOptions& o) {
  if (o.limit_bytes < kExtentGranule)
    return invalid("an arena limit below 2 MiB: " + std::to_string(o.limit_bytes) +
                   " bytes; set SLUICE_ARENA_LIMIT or ArenaOptions::limit_bytes to 2M or more");
  if (o.limit_bytes > kLargestClassBytes)
    return invalid("an arena limit above 1 TiB: " + mebibytes(o.limit_bytes) +
                   "; set SLUICE_ARENA_LIMIT or ArenaOptions::limit_bytes to 1024G or less");
  if (o.first_extent_bytes == 0 || o.first_extent_bytes > o.largest_extent_bytes ||
      o.largest_extent_bytes > kLargestClassBytes) {
    return invalid(
        "first_extent_bytes must be above 0 and at most largest_extent_bytes, that at most 1 TiB");
  }
  if (o.receive_reserve_bytes >= o.limit_bytes) {
    return invalid("the receive reserve of " + mebibytes(o.receive_reserve_bytes) +
                   " takes the whole limit of " + mebibytes(o.limit_bytes));
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::create(const ArenaOptions& wanted, PageSource& pages,
                                             MemoryRegistrar* registrar) {
  ArenaOptions options = wanted;
  if (options.limit_bytes == 0) {
    const std::optional<std::string> limit = setting_text("SLUICE_ARENA_LIMIT");
    SLUICE_TRY(options.limit_bytes,
               default_arena_limit(limit ? limit->c_str() : nullptr, machine_memory_bytes()));
  }
  SLUICE_RETURN_IF_ERROR(check_options(options));
  if (const auto place = setting_text("SLUICE_ARENA_NUMA"); place && !options.numa) {
    SLUICE_TRY(options.numa, parse_numa(*place));
  }
  if (!options.numa) options.numa = NumaPlacement{};
  SLUICE_RETURN_IF_ERROR(check_numa(*options.numa));
  options.limit_bytes -= options.limit_bytes % kExtentGranule;
  options.receive_reserve_bytes = round_up(options.receive_reserve_bytes, kLargeStepBytes);
  SLUICE_RETURN_IF_ERROR(check_options(options));
  auto state = std::make_unique<ArenaState>(options, pages, registrar);
  // Twice the limit: ranges given back are reused where they fit, and two audiences may
  // keep each other's neighbours from growing.
  uint64_t reserved = uint64_t{options.limit_bytes} * 2;
  SLUICE_TRY(state->base, pages.reserve(reserved));
  state->reserved = reserved;
  state->free_addresses.add(0, reserved);
  state->granules = std::make_unique<std::atomic<uint16_t>[]>(reserved / kExtentGranule);
  state->extents = std::make_unique<Extent[]>(kMostExtents);
  for (size_t i = kMostExtents; i-- > 0;) state->free_slots.push_back(static_cast<uint16_t>(i));
  return std::unique_ptr<Arena>(new Arena(state.release()));
}

Arena::~Arena() {
  // A child leaves all to its parent: the locks may have been held when it was forked.
  if (!state_->owner.in_forked_child()) state_->end();
}

ArenaState::ArenaState(const ArenaOptions& o, PageSource& p, MemoryRegistrar* r)
    : options(o), pages(p) {
  if (options.numa->mode == NumaMode::kInterleave) {
    Result<std::vector<int>> known = numa_nodes();
    if (known.ok()) nodes = std::move(known).value();
  }
  if (r != nullptr) registrars.push_back(r);
}

Status ArenaState::tell_added(ExtentId id, std::byte* data, size_t length) {
  for (size_t i = 0; i < registrars.size(); ++i) {
    Status added = registrars[i]->extent_added(id, data, length);
    if (added.ok()) continue;
    while (i-- > 0) registrars[i]->extent_removed(id);
    return added;
  }
  return Status();
}

void ArenaState::tell_removed(ExtentId id) noexcept {
  for (MemoryRegistrar* registrar : registrars) registrar->extent_removed(id);
}

ArenaState::~ArenaState() {
  flush_caches();
  for (ArenaBlock* block = spare_blocks; block != nullptr;) {
    ArenaBlock* next = block->next;
    delete block;
    block = next;
  }
  if (reserved == 0) return;
  free_some(SIZE_MAX);
  for (uint64_t g = 0; g < reserved / kExtentGranule;) {
    uint16_t slot = granules[g].load(std::memory_order_relaxed);
    if (slot == 0) {
      ++g;
      continue;
    }
    const Extent& extent = extents[slot - 1];
    tell_removed(extent.info.id);
    pages.decommit(extent.run);
    g += extent.info.length / kExtentGranule;
  }
  pages.unreserve(base, reserved);
}

Result<Buffer> Arena::allocate(size_t bytes, const AllocateOptions& options) {
  ArenaState* s = state_;
  if (s->owner.in_forked_child()) [[unlikely]]
    return s->in_forked_child_status();
  auto refused = [s](Status why) {
    s->failures.fetch_add(1, std::memory_order_relaxed);
    return why;
  };
  if (bytes > s->options.limit_bytes) [[unlikely]]
    return refused(s->refused_by_limit(bytes));
  uint64_t length = run_length(bytes);
  if (!ArenaState::charge(options.quota, length)) [[unlikely]]
    return refused(s->refused_by_quota(bytes, *options.quota));
  Result<ArenaBlock*> block = s->take(length, options);
  if (!block.ok()) [[unlikely]] {
    ArenaState::refund(options.quota, length);
    return refused(block.status());
  }
  return s->buffer_of(*block, bytes, options.quota);
}

std::optional<Result<Buffer>> Arena::allocate_present(size_t bytes,
                                                      const AllocateOptions& options) {
  PendingAllocation whole(state_, bytes, options);
  if (!whole.ready()) return std::nullopt;
  return whole.take();
}

std::unique_ptr<PendingAllocation> Arena::begin_allocate(size_t bytes,
                                                         const AllocateOptions& options) {
  return std::make_unique<PendingAllocation>(state_, bytes, options);
}

Result<Buffer> Arena::allocate(std::span<const int64_t> shape, DataType dtype,
                               const AllocateOptions& options) {
  SLUICE_TRY(TensorDescriptor descriptor, TensorDescriptor::compact(shape, dtype));
  Result<Buffer> buffer = allocate(descriptor.span_bytes(), options);
  if (buffer.ok()) SLUICE_RETURN_IF_ERROR(buffer->reshape(descriptor));
  return buffer;
}

std::optional<Arena::Place> Arena::locate(const void* data, size_t length) const {
  if (state_->owner.in_forked_child()) return std::nullopt;
  auto address = reinterpret_cast<uintptr_t>(data);
  auto base = reinterpret_cast<uintptr_t>(state_->base);
  if (address < base || length > state_->reserved || address - base > state_->reserved - length)
    return std::nullopt;
  uint64_t offset = address - base;
  uint16_t slot = state_->granules[std::min(offset, state_->reserved - 1) / kExtentGranule].load(
      std::memory_order_acquire);
  if (slot == 0) return std::nullopt;
  const Extent& extent = state_->extents[slot - 1];
  // Neighbouring extents of another audience end the run.
  for (uint64_t at = extent.info.arena_offset + extent.info.length; at < offset + length;) {
    uint16_t next = state_->granules[at / kExtentGranule].load(std::memory_order_acquire);
    if (next == 0 || state_->extents[next - 1].info.audience != extent.info.audience)
      return std::nullopt;
    at = state_->extents[next - 1].info.arena_offset + state_->extents[next - 1].info.length;
  }
  return Place{.first = extent.info,
               .extent_offset = offset - extent.info.arena_offset,
               .arena_offset = offset};
}

std::vector<ExtentInfo> Arena::extents_over(uint64_t arena_offset, uint64_t length) const {
  std::vector<ExtentInfo> found;
  if (length == 0 || !range_fits(arena_offset, length, state_->reserved) ||
      state_->owner.in_forked_child())
    return found;
  std::lock_guard lock(state_->mutex);
  uint64_t end = arena_offset + length;
  for (uint64_t at = arena_offset; at < end;) {
    uint16_t slot = state_->granules[at / kExtentGranule].load(std::memory_order_relaxed);
    if (slot == 0) {
      at = (at / kExtentGranule + 1) * kExtentGranule;
      continue;
    }
    const ExtentInfo& info = state_->extents[slot - 1].info;
    found.push_back(info);
    at = info.arena_offset + info.length;
  }
  return found;
}

std::optional<ExtentInfo> Arena::extent(ExtentId id) const {
  for (const ExtentInfo& info : extents_over(0, state_->reserved)) {
    if (info.id == id) return info;
  }
  return std::nullopt;
}

// Its slot stays its own: memory of it is in use.
Status Arena::seal(const ExtentInfo& info) {
  ArenaState* s = state_;
  if (s->owner.in_forked_child()) return s->in_forked_child_status();
  const uint16_t slot =
      s->granules[info.arena_offset / kExtentGranule].load(std::memory_order_acquire);
  Extent& extent = s->extents[slot - 1];
  {
    std::lock_guard lock(s->mutex);
    if (extent.run.sealed) return Status();
  }
  SLUICE_RETURN_IF_ERROR(s->pages.seal(extent.run));
  std::lock_guard lock(s->mutex);
  extent.run.sealed = true;
  return Status();
}

const NumaPlacement& Arena::numa() const { return *state_->options.numa; }
std::byte* Arena::base() const { return state_->base; }
size_t Arena::reserved_address_bytes() const { return state_->reserved; }

Status Arena::prefault(size_t bytes, Audience audience) {
  ArenaState* s = state_;
  if (s->owner.in_forked_child()) return s->in_forked_child_status();
  if (bytes > s->options.limit_bytes) return s->refused_by_limit(bytes);
  std::lock_guard growing(s->grow_mutex);
  while (true) {
    uint64_t free;
    {
      std::lock_guard lock(s->mutex);
      s->flush_caches();
      free = s->free_runs[static_cast<size_t>(audience)].total();
    }
    if (free >= bytes) return Status();
    SLUICE_RETURN_IF_ERROR(s->grow(bytes - free, audience, false));
  }
}

Status Arena::attach(MemoryRegistrar& registrar) {
  ArenaState* s = state_;
  if (s->owner.in_forked_child()) return s->in_forked_child_status();
  std::lock_guard growing(s->grow_mutex);
  std::vector<ExtentInfo> extents = extents_over(0, s->reserved);
  for (size_t i = 0; i < extents.size(); ++i) {
    Status added =
        registrar.extent_added(extents[i].id, s->base + extents[i].arena_offset, extents[i].length);
    if (added.ok()) continue;
    while (i-- > 0) registrar.extent_removed(extents[i].id);
    return added;
  }
  s->registrars.push_back(&registrar);
  return Status();
}

void Arena::detach(MemoryRegistrar& registrar) {
  if (state_->owner.in_forked_child()) return;
  std::lock_guard growing(state_->grow_mutex);
  std::erase(state_->registrars, &registrar);
}

size_t Arena::trim() {
  if (state_->owner.in_forked_child()) return 0;
  std::lock_guard growing(state_->grow_mutex);
  return state_->trim();
}

size_t Arena::start_trim() {
  if (state_->owner.in_forked_child()) return 0;
  std::unique_lock growing(state_->grow_mutex, std::try_to_lock);
  return growing ? state_->start_trim() : 0;
}

size_t Arena::free_some(size_t bytes) {
  if (freeing_bytes() == 0 || state_->owner.in_forked_child()) return 0;
  std::unique_lock growing(state_->grow_mutex, std::try_to_lock);
  // The kernel takes no part of a page.
  const size_t whole = round_up(std::min<uint64_t>(bytes, state_->reserved), kExtentGranule);
  return growing ? state_->free_some(whole) : 0;
}

size_t Arena::freeing_bytes() const {
  return state_->leaving_bytes.load(std::memory_order_relaxed);
}

ArenaStatistics Arena::statistics() const {
  ArenaStatistics statistics{};
  const ArenaState* s = state_;
  statistics.limit_bytes = s->options.limit_bytes;
  statistics.reserved_address_bytes = s->reserved;
  if (s->owner.in_forked_child()) return statistics;
  std::lock_guard lock(s->mutex);
  int64_t live = 0;
  for (CacheShard& shard : state_->shards) {
    shard.lock.lock();
    statistics.cached_bytes += shard.cached_bytes;
    statistics.allocations += shard.allocations;
    live += shard.live;
    shard.lock.unlock();
  }
  uint64_t taken = s->taken_bytes();
  statistics.extent_bytes = s->extent_bytes;
  // Runs that moved between shards while we counted may be seen twice.
  statistics.used_bytes = taken - std::min<uint64_t>(taken, statistics.cached_bytes);
  statistics.peak_used_bytes = s->peak;
  statistics.extents_added = s->extents_added;
  statistics.extents_removed = s->extents_removed;
  statistics.failures = s->failures.load(std::memory_order_relaxed);
  statistics.outstanding = static_cast<size_t>(std::max<int64_t>(live, 0));
  return statistics;
}

}  // namespace sluice
