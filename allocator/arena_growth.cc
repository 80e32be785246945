// Extents: how the arena grows, gives back, and collects what threads keep cached.
#include <algorithm>
#include <string>

#include <sluice/base/checked.h>
#include <sluice/base/counters.h>

#include "allocator/arena_state.h"

namespace sluice {
namespace {
constexpr const char* kOrigin = "allocator/arena";
Counter extents_added_total("allocator.extents_added");
Counter extents_removed_total("allocator.extents_removed");
}  // namespace

ArenaBlock* ArenaState::take_block() {
  if (spare_blocks == nullptr) return new ArenaBlock();
  ArenaBlock* block = spare_blocks;
  spare_blocks = block->next;
  return block;
}

void ArenaState::flush_caches() {
  for (CacheShard& shard : shards) {
    shard.lock.lock();
    for (size_t audience = 0; audience < shard.blocks.size(); ++audience) {
      for (ArenaBlock*& head : shard.blocks[audience]) {
        while (head != nullptr) {
          ArenaBlock* block = head;
          head = block->next;
          free_runs[audience].add(block->offset, class_bytes(static_cast<int>(block->size_class)));
          block->next = spare_blocks;
          spare_blocks = block;
        }
      }
    }
    shard.cached_bytes = 0;
    shard.lock.unlock();
  }
}

// Adds extents until a run of `bytes` is free. They follow each other in address order,
// so that a run may cross them.
Status ArenaState::grow(uint64_t bytes, Audience audience) {
  FreeRuns& runs = free_runs[static_cast<int>(audience)];
  uint64_t left = options.limit_bytes - extent_bytes;
  // Where the next extent will start decides what it continues.
  uint64_t end_of_extents = 0;
  for (uint64_t g = reserved / kExtentGranule; g-- > 0;) {
    if (granules[g].load(std::memory_order_relaxed) != 0) {
      end_of_extents = (g + 1) * kExtentGranule;
      break;
    }
  }
  uint64_t continued = runs.length_before(end_of_extents);
  uint64_t need = round_up(bytes - std::min(bytes, continued), kExtentGranule);
  if (need > left) {
    // Memory of the other audience that is free could serve if it went back first.
    if (trim() == 0) return limit_status(bytes);
    left = options.limit_bytes - extent_bytes;
    need = round_up(bytes, kExtentGranule);
    if (need > left) return limit_status(bytes);
  }
  while (runs.largest() < bytes) {
    uint64_t missing = round_up(bytes - std::min(bytes, continued), kExtentGranule);
    uint64_t largest = round_up<uint64_t>(options.largest_extent_bytes, kExtentGranule);
    uint64_t length = std::max(std::min(next_extent_bytes, largest), std::min(missing, largest));
    length = std::min(length, options.limit_bytes - extent_bytes);
    if (length == 0) return limit_status(bytes);
    SLUICE_RETURN_IF_ERROR(add_extent(length, audience));
    next_extent_bytes = std::min(next_extent_bytes * 2, largest);
    continued = std::min(bytes, runs.largest());
  }
  return Status();
}

Status ArenaState::add_extent(uint64_t length, Audience audience) {
  if (free_slots.empty()) {
    return Status(Code::kNoMemory, Scope::kOperation, kOrigin,
                  "1024 extents are in use; raise ArenaOptions::first_extent_bytes");
  }
  // After all others if it fits there, so that runs can continue; else in a gap.
  uint64_t end = reserved - free_addresses.length_before(reserved);
  uint64_t offset = end;
  if (reserved - end < length || !free_addresses.take_exactly(end, length)) {
    std::optional<uint64_t> gap = free_addresses.take(length);
    if (!gap) {
      return Status(Code::kNoMemory, Scope::kOperation, kOrigin,
                    "the arena's addresses are fragmented; trim() or raise ArenaOptions::limit_bytes");
    }
    offset = *gap;
  }
  Result<PageRun> run = pages.commit(base + offset, length);
  if (!run.ok()) {
    free_addresses.add(offset, length);
    return run.status();
  }
  ExtentId id = next_id++;
  if (registrar != nullptr) {
    Status registered = registrar->extent_added(id, base + offset, length);
    if (!registered.ok()) {
      pages.decommit(*run);
      free_addresses.add(offset, length);
      return registered;
    }
  }
  uint16_t slot = free_slots.back();
  free_slots.pop_back();
  extents[slot] = {.info = {.id = id, .arena_offset = offset, .length = length, .fd = run->fd, .audience = audience, .pages = run->pages},
                   .run = *run};
  for (uint64_t g = offset / kExtentGranule; g < (offset + length) / kExtentGranule; ++g) {
    granules[g].store(static_cast<uint16_t>(slot + 1), std::memory_order_release);
  }
  extent_bytes += length;
  ++extents_added;
  extents_added_total.add();
  free_runs[static_cast<int>(audience)].add(offset, length);
  return Status();
}

size_t ArenaState::trim() {
  flush_caches();
  size_t given_back = 0;
  for (uint64_t g = 0; g < reserved / kExtentGranule; ++g) {
    uint16_t slot = granules[g].load(std::memory_order_relaxed);
    if (slot == 0) continue;
    Extent extent = extents[slot - 1];
    if (extent.info.arena_offset != g * kExtentGranule) continue;
    bool free = free_runs[static_cast<int>(extent.info.audience)].take_exactly(extent.info.arena_offset, extent.info.length);
    if (!free) continue;
    if (registrar != nullptr) registrar->extent_removed(extent.info.id);
    for (uint64_t h = g; h < g + extent.info.length / kExtentGranule; ++h) granules[h].store(0, std::memory_order_release);
    pages.decommit(extent.run);
    free_addresses.add(extent.info.arena_offset, extent.info.length);
    free_slots.push_back(static_cast<uint16_t>(slot - 1));
    extent_bytes -= extent.info.length;
    ++extents_removed;
    extents_removed_total.add();
    given_back += extent.info.length;
  }
  return given_back;
}

}  // namespace sluice
