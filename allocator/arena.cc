// Handing out and taking back. Extents come and go in arena_growth.cc.
#include <sluice/allocator/arena.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>

#include <sluice/base/checked.h>
#include <sluice/base/counters.h>

#include "allocator/arena_state.h"

namespace sluice {
namespace {

constexpr const char* kOrigin = "allocator/arena";
Counter refused_limit("allocator.refused_limit");
Counter refused_quota("allocator.refused_quota");

Status invalid(const std::string& why) { return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, why); }

std::string mib(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

// A page that reads as zero in a forked child (madvise(2), MADV_WIPEONFORK).
const std::atomic<uint32_t>* fork_page() {
  static const std::atomic<uint32_t>* page = [] {
    static std::atomic<uint32_t> fallback{1};
    size_t length = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    void* address = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return const_cast<const std::atomic<uint32_t>*>(&fallback);
    ::madvise(address, length, MADV_WIPEONFORK);
    auto* word = new (address) std::atomic<uint32_t>(1);
    return const_cast<const std::atomic<uint32_t>*>(word);
  }();
  return page;
}

// "8G", "512M", "1073741824".
Result<uint64_t> parse_size(const char* variable, const std::string& text) {
  char* end = nullptr;
  errno = 0;
  unsigned long long value = std::strtoull(text.c_str(), &end, 10);
  int shift = 0;
  std::string unit = end;
  if (unit == "K") shift = 10;
  else if (unit == "M") shift = 20;
  else if (unit == "G") shift = 30;
  else if (!unit.empty()) shift = -1;
  bool number = !text.empty() && text[0] >= '0' && text[0] <= '9' && errno == 0;
  auto bytes = shift >= 0 && number ? checked_multiply<uint64_t>(value, uint64_t{1} << shift) : std::nullopt;
  if (!bytes || *bytes == 0 || *bytes > kLargestClassBytes) {
    return invalid(std::string(variable) + "='" + text + "' is not a size; example: " + variable + "=8G");
  }
  return *bytes;
}

Result<uint64_t> default_limit() {
  if (const char* text = std::getenv("SLUICE_ARENA_LIMIT")) return parse_size("SLUICE_ARENA_LIMIT", text);
  uint64_t memory = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return round_up(memory / 2, kExtentGranule);
}

Status check_options(const ArenaOptions& o) {
  if (o.limit_bytes > kLargestClassBytes) return invalid("an arena limit above 1 TiB");
  if (o.first_extent_bytes == 0 || o.first_extent_bytes > o.largest_extent_bytes) {
    return invalid("first_extent_bytes must be above 0 and at most largest_extent_bytes");
  }
  if (o.receive_reserve_bytes >= o.limit_bytes) {
    return invalid("the receive reserve of " + mib(o.receive_reserve_bytes) + " takes the whole limit of " + mib(o.limit_bytes));
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::create(const ArenaOptions& wanted, PageSource& pages, MemoryRegistrar* registrar) {
  ArenaOptions options = wanted;
  if (options.limit_bytes == 0) {
    SLUICE_TRY(options.limit_bytes, default_limit());
  }
  options.limit_bytes = round_up<size_t>(options.limit_bytes, kExtentGranule);
  SLUICE_RETURN_IF_ERROR(check_options(options));
  auto state = std::make_unique<ArenaState>(options, pages, registrar);
  // Twice the limit: ranges given back are reused where they fit, and two audiences may
  // keep each other's neighbours from growing.
  state->reserved = options.limit_bytes * 2;
  SLUICE_TRY(state->base, pages.reserve(state->reserved));
  state->free_addresses.add(0, state->reserved);
  state->granules = std::make_unique<std::atomic<uint16_t>[]>(state->reserved / kExtentGranule);
  state->extents = std::make_unique<Extent[]>(kMostExtents);
  for (size_t i = kMostExtents; i-- > 0;) state->free_slots.push_back(static_cast<uint16_t>(i));
  state->next_extent_bytes = round_up<uint64_t>(options.first_extent_bytes, kExtentGranule);
  state->fork_page = fork_page();
  return std::unique_ptr<Arena>(new Arena(state.release()));
}

Arena::~Arena() { state_->unref(); }

ArenaState::~ArenaState() {
  flush_caches();
  for (ArenaBlock* block = spare_blocks; block != nullptr;) {
    ArenaBlock* next = block->next;
    delete block;
    block = next;
  }
  if (fork_page->load(std::memory_order_relaxed) == 0) return;  // the parent's memory
  for (uint64_t g = 0; granules && g < reserved / kExtentGranule; ++g) {
    uint16_t slot = granules[g].load(std::memory_order_relaxed);
    if (slot == 0) continue;
    Extent& extent = extents[slot - 1];
    if (extent.info.arena_offset != g * kExtentGranule) continue;
    if (registrar != nullptr) registrar->extent_removed(extent.info.id);
    pages.decommit(extent.run);
  }
  if (base != nullptr) pages.unreserve(base, reserved);
}

Status ArenaState::limit_status(uint64_t bytes) const {
  refused_limit.add();
  return Status(Code::kNoMemory, Scope::kOperation, kOrigin,
                "no room for " + std::to_string(bytes) + " bytes: the arena's limit is " + mib(options.limit_bytes) + ", " +
                    mib(used.load(std::memory_order_relaxed)) + " are in use, " + mib(options.receive_reserve_bytes) +
                    " are kept for receives; raise ArenaOptions::limit_bytes or SLUICE_ARENA_LIMIT");
}

Result<Buffer> Arena::allocate(size_t bytes, const AllocateOptions& options) {
  ArenaState* s = state_;
  if (s->fork_page->load(std::memory_order_relaxed) == 0) [[unlikely]] {
    return Status(Code::kWrongState, Scope::kContext, kOrigin, "this process was forked from the arena's owner; create an arena of its own");
  }
  if (bytes > kLargestClassBytes) [[unlikely]] return s->limit_status(bytes);
  int size_class = class_of(bytes);
  uint64_t length = class_bytes(size_class);
  // Charged first, so that two threads cannot both pass the last free byte.
  uint64_t limit = s->options.limit_bytes - (options.for_receive ? 0 : s->options.receive_reserve_bytes);
  uint64_t used = s->used.fetch_add(length, std::memory_order_relaxed) + length;
  auto uncharge = [&] {
    s->used.fetch_sub(length, std::memory_order_relaxed);
    s->failures.fetch_add(1, std::memory_order_relaxed);
  };
  if (used > limit) [[unlikely]] {
    uncharge();
    return s->limit_status(bytes);
  }
  if (options.quota != nullptr) {
    size_t charged = options.quota->used_.fetch_add(length, std::memory_order_relaxed) + length;
    if (charged > options.quota->limit_) {
      options.quota->used_.fetch_sub(length, std::memory_order_relaxed);
      uncharge();
      refused_quota.add();
      return Status(Code::kNoMemory, Scope::kOperation, kOrigin,
                    "no room for " + std::to_string(bytes) + " bytes in a peer's quota of " + mib(options.quota->limit_) + ", " +
                        mib(charged - length) + " are in use; receive or release what it holds");
    }
  }
  int audience = static_cast<int>(options.audience);
  ArenaBlock* block = nullptr;
  CacheShard& shard = s->shards[shard_of_thread()];
  shard.lock.lock();
  ++shard.allocations;
  ArenaBlock*& head = shard.blocks[audience][size_class];
  if (head != nullptr) {
    block = head;
    head = block->next;
    shard.cached_bytes -= length;
  }
  shard.lock.unlock();
  if (block == nullptr) [[unlikely]] {
    std::lock_guard lock(s->mutex);
    auto& runs = s->free_runs[audience];
    std::optional<uint64_t> offset = runs.take(length);
    if (!offset) {
      // What other threads keep cached may join to a run that is long enough.
      s->flush_caches();
      offset = runs.take(length);
    }
    if (!offset) {
      Status grown = s->grow(length, options.audience);
      if (!grown.ok()) {
        if (options.quota != nullptr) options.quota->used_.fetch_sub(length, std::memory_order_relaxed);
        uncharge();
        return grown;
      }
      offset = runs.take(length);
    }
    block = s->take_block();
    block->arena = s;
    block->offset = *offset;
    block->size_class = static_cast<uint32_t>(size_class);
    block->audience = static_cast<uint8_t>(audience);
  }
  if (used > s->peak.load(std::memory_order_relaxed)) s->peak.store(used, std::memory_order_relaxed);
  block->quota = options.quota;
  s->references.fetch_add(1, std::memory_order_relaxed);
  block->start(s->base + block->offset, length, &ArenaState::on_release);
  return Buffer(StorageRef::adopt(block), TensorDescriptor::bytes(bytes));
}

Result<Buffer> Arena::allocate(std::span<const int64_t> shape, DataType dtype, const AllocateOptions& options) {
  SLUICE_TRY(TensorDescriptor descriptor, TensorDescriptor::compact(shape, dtype));
  SLUICE_TRY(Buffer buffer, allocate(descriptor.span_bytes(), options));
  return Buffer(buffer.storage(), descriptor);
}

void ArenaState::on_release(Storage* storage) noexcept {
  auto* block = static_cast<ArenaBlock*>(storage);
  ArenaState* s = block->arena;
  uint64_t length = class_bytes(static_cast<int>(block->size_class));
  if (block->quota != nullptr) block->quota->used_.fetch_sub(length, std::memory_order_relaxed);
  s->used.fetch_sub(length, std::memory_order_relaxed);
  CacheShard& shard = s->shards[shard_of_thread()];
  shard.lock.lock();
  ArenaBlock*& head = shard.blocks[block->audience][block->size_class];
  block->next = head;
  head = block;
  shard.cached_bytes += length;
  shard.lock.unlock();
  s->unref();
}

std::optional<Arena::Place> Arena::locate(const void* data, size_t length) const {
  auto address = reinterpret_cast<uintptr_t>(data);
  auto base = reinterpret_cast<uintptr_t>(state_->base);
  if (address < base || length > state_->reserved || address - base > state_->reserved - length) return std::nullopt;
  uint64_t offset = address - base;
  uint16_t slot = state_->granules[std::min(offset, state_->reserved - 1) / kExtentGranule].load(std::memory_order_acquire);
  if (slot == 0) return std::nullopt;
  const Extent& extent = state_->extents[slot - 1];
  // Neighbouring extents of another audience end the run.
  for (uint64_t at = extent.info.arena_offset + extent.info.length; at < offset + length;) {
    uint16_t next = state_->granules[at / kExtentGranule].load(std::memory_order_acquire);
    if (next == 0 || state_->extents[next - 1].info.audience != extent.info.audience) return std::nullopt;
    at = state_->extents[next - 1].info.arena_offset + state_->extents[next - 1].info.length;
  }
  return Place{.first = extent.info, .extent_offset = offset - extent.info.arena_offset, .arena_offset = offset};
}

std::vector<ExtentInfo> Arena::extents_over(uint64_t arena_offset, uint64_t length) const {
  std::vector<ExtentInfo> found;
  if (length == 0 || !range_fits(arena_offset, length, state_->reserved)) return found;
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

std::byte* Arena::base() const { return state_->base; }
size_t Arena::reserved_address_bytes() const { return state_->reserved; }

Status Arena::prefault(size_t bytes, Audience audience) {
  std::lock_guard lock(state_->mutex);
  state_->flush_caches();
  FreeRuns& runs = state_->free_runs[static_cast<int>(audience)];
  if (runs.total() >= bytes) return Status();
  return state_->grow(bytes - runs.total(), audience);
}

size_t Arena::trim() {
  std::lock_guard lock(state_->mutex);
  return state_->trim();
}

ArenaStatistics Arena::statistics() const {
  ArenaStatistics statistics{};
  std::lock_guard lock(state_->mutex);
  statistics.limit_bytes = state_->options.limit_bytes;
  statistics.reserved_address_bytes = state_->reserved;
  statistics.extent_bytes = state_->extent_bytes;
  statistics.used_bytes = state_->used.load(std::memory_order_relaxed);
  statistics.peak_used_bytes = state_->peak.load(std::memory_order_relaxed);
  statistics.extents_added = state_->extents_added;
  statistics.extents_removed = state_->extents_removed;
  statistics.failures = state_->failures.load(std::memory_order_relaxed);
  for (CacheShard& shard : state_->shards) {
    shard.lock.lock();
    statistics.cached_bytes += shard.cached_bytes;
    statistics.allocations += shard.allocations;
    shard.lock.unlock();
  }
  statistics.outstanding = static_cast<size_t>(state_->references.load(std::memory_order_relaxed) - 1);
  return statistics;
}

}  // namespace sluice
