// Extents: how the arena grows and gives back.
#include <algorithm>
#include <string>

#include <sluice/base/checked.h>
#include <sluice/base/counters.h>

#include "allocator/arena_state.h"
#include "allocator/machine_memory.h"

namespace sluice {
namespace {
constexpr const char* kOrigin = "allocator/arena";
Counter extents_added_total("allocator.extents_added");
Counter extents_removed_total("allocator.extents_removed");
}  // namespace

// Addresses for an extent of at least the needed length, taken out of free_addresses.
// After the others if it fits there, so that runs can continue; else in a gap.
std::optional<uint64_t> ArenaState::place(const Need& need, uint64_t* length) {
  uint64_t at_end = std::min(need.most, free_addresses.length_before(reserved));
  if (need.at_end <= at_end) {
    uint64_t offset = reserved - free_addresses.length_before(reserved);
    *length = std::clamp(need.preferred, need.at_end, at_end);
    if (free_addresses.take_exactly(offset, *length)) return offset;
  }
  if (need.bytes > need.most) return std::nullopt;
  *length = std::clamp(need.preferred, need.bytes, need.most);
  std::optional<uint64_t> gap = free_addresses.take(*length);
  if (!gap) gap = free_addresses.take(*length = need.bytes);
  return gap;
}

// What an extent for `bytes` more must hold. Under `grow_mutex`, without `mutex`.
ArenaState::Need ArenaState::need_for(uint64_t bytes, Audience audience, bool one_run,
                                      std::optional<Audience> spared) const {
  size_t index = static_cast<size_t>(audience);
  uint64_t reserve = reserve_placed ? 0 : options.receive_reserve_bytes;
  // The reserve lies in the first extent of the default audience; until then the
  // other audience leaves room for it.
  uint64_t carved = audience == Audience::kSameUser ? reserve : 0;
  uint64_t used = extent_bytes + pending_bytes.load(std::memory_order_relaxed);
  uint64_t left = options.limit_bytes - std::min<uint64_t>(options.limit_bytes, used);
  left -= std::min(left, audience == Audience::kSameUser ? 0 : round_up(reserve, kExtentGranule));
  Need need{.bytes = round_up(bytes + carved, kExtentGranule), .carved = carved, .most = left};
  std::lock_guard lock(mutex);
  uint64_t end = reserved - free_addresses.length_before(reserved);
  // The reserve would lie between the free run before the extent and the rest of it.
  const bool continues = one_run && carved == 0;
  need.continued = continues ? std::min(bytes, free_runs[index].length_before(end)) : 0;
  need.at_end = std::max(round_up(bytes + carved - need.continued, kExtentGranule), kExtentGranule);
  uint64_t shift = std::min<uint64_t>(audience_extents[index], 20);
  need.preferred = round_up<uint64_t>(
      std::min<uint64_t>(options.largest_extent_bytes, options.first_extent_bytes << shift),
      kExtentGranule);
  need.reclaimable = leaving_bytes.load(std::memory_order_relaxed);
  for (uint16_t slot : whole_free_extents(spared)) need.reclaimable += extents[slot].info.length;
  return need;
}

Status ArenaState::grow(uint64_t bytes, Audience audience, bool one_run) {
  // What shall become more is not given back in order to become more.
  std::optional<Audience> spared;
  if (!one_run) spared = audience;
  for (bool trimmed = false;; trimmed = true) {
    const Need need = need_for(bytes, audience, one_run, spared);
    uint64_t length = 0;
    std::optional<uint64_t> offset = place(need, &length);
    Status status;
    if (offset) {
      status = add_extent(*offset, length, audience, need.carved);
      if (status.ok()) return status;
      // The system is short: with less if that will do.
      uint64_t least =
          *offset == reserved - free_addresses.length_before(reserved) ? need.at_end : need.bytes;
      if (least < length && free_addresses.take_exactly(*offset, least)) {
        status = add_extent(*offset, least, audience, need.carved);
        if (status.ok()) return status;
      }
    }
    // Whole extents that are free, of either audience, could serve as one.
    bool helps = need.reclaimable > 0 && (offset || need.most + need.reclaimable >= need.bytes);
    if (trimmed || !helps || trim(spared) == 0) return offset ? status : refused_by_limit(bytes);
  }
}

Status ArenaState::no_slot() const {
  return Status(
      Code::kNoMemory, Scope::kOperation, kOrigin,
      std::to_string(kMostExtents) + " extents are in use; raise ArenaOptions::first_extent_bytes");
}

Result<size_t> ArenaState::populate(PageRun& run, size_t offset, size_t length) {
  const auto from_base = static_cast<size_t>(run.base - base) + offset;
  OnNumaNode place(*options.numa, nodes, from_base / kExtentGranule);
  return pages.populate(run, offset, length);
}

// As PageSource::commit(), by the arena's placement.
Result<PageRun> ArenaState::commit(uint64_t offset, uint64_t length) {
  if (options.numa->mode == NumaMode::kProcess) return pages.commit(base + offset, length);
  SLUICE_TRY(PageRun run, pages.begin_commit(base + offset, length));
  Status status;
  for (size_t done = 0; done < length && status.ok();) {
    Result<size_t> reached = populate(run, done, kExtentGranule);
    status = reached.status();
    if (status.ok() && *reached == done) {
      // In one piece, so that all of it is of small pages.
      Result<PageRun> small = pages.go_on_small(run, 0);
      status = small.status();
      if (status.ok()) run = *small;
      done = 0;
    } else if (status.ok()) {
      done = *reached;
    }
  }
  if (status.ok()) status = pages.end_commit(run);
  if (status.ok()) return run;
  pages.decommit(run);
  return status;
}

// Takes [offset, offset + length) out of the reserved addresses' hands into use, or
// gives it back to free_addresses.
Status ArenaState::add_extent(uint64_t offset, uint64_t length, Audience audience,
                              uint64_t carved) {
  Status status = free_slots.empty() ? no_slot() : Status();
  Result<PageRun> run = status.ok() ? commit(offset, length) : status;
  if (!run.ok()) {
    free_addresses.add(offset, length);
    return run.status();
  }
  GrowingExtent made{.offset = offset, .carved = carved, .audience = audience, .run = *run};
  status = register_extent(made);
  if (!status.ok()) {
    pages.decommit(*run);
    free_addresses.add(offset, length);
    return status;
  }
  std::lock_guard lock(mutex);
  enter_extent(made);
  return Status();
}

Status ArenaState::register_extent(GrowingExtent& made) {
  if (free_slots.empty()) return no_slot();
  made.id = next_id++;
  return tell_added(made.id, made.run.base, made.run.length);
}

void ArenaState::enter_extent(const GrowingExtent& made) {
  const uint64_t offset = made.offset, length = made.run.length;
  const uint64_t reserve = reserve_placed ? 0 : made.carved;
  uint16_t slot = free_slots.back();
  free_slots.pop_back();
  size_t index = static_cast<size_t>(made.audience);
  extents[slot] = {.info = {.id = made.id,
                            .arena_offset = offset,
                            .length = length,
                            .fd = made.run.fd,
                            .audience = made.audience,
                            .pages = made.run.pages},
                   .run = made.run};
  for (uint64_t g = offset / kExtentGranule; g < (offset + length) / kExtentGranule; ++g) {
    granules[g].store(static_cast<uint16_t>(slot + 1), std::memory_order_release);
  }
  extent_bytes += length;
  audience_bytes[index] += length;
  ++audience_extents[index];
  ++extents_added;
  extents_added_total.add();
  if (reserve > 0) {
    reserve_runs.add(offset, reserve);
    reserve_placed = true;
  }
  if (length > reserve) free_runs[index].add(offset + reserve, length - reserve);
}

// The reserve goes only with the last extent of its audience: nothing else is in use.
bool ArenaState::reserve_idle() const {
  return reserve_placed && reserve_runs.total() == options.receive_reserve_bytes &&
         free_runs[0].total() + reserve_runs.total() == audience_bytes[0];
}

std::vector<uint16_t> ArenaState::whole_free_extents(std::optional<Audience> spared) const {
  std::vector<uint16_t> found;
  bool all_of_default = reserve_idle();
  for (uint64_t g = 0; g < reserved / kExtentGranule;) {
    uint16_t slot = granules[g].load(std::memory_order_relaxed);
    if (slot == 0) {
      ++g;
      continue;
    }
    const ExtentInfo& info = extents[slot - 1].info;
    size_t index = static_cast<size_t>(info.audience);
    bool free = free_runs[index].is_free(info.arena_offset, info.length);
    free = free || (info.audience == Audience::kSameUser && all_of_default);
    if (free && info.audience != spared) found.push_back(static_cast<uint16_t>(slot - 1));
    g += info.length / kExtentGranule;
  }
  return found;
}

size_t ArenaState::start_trim(std::optional<Audience> spared) {
  std::vector<uint16_t> slots;
  size_t given_back = 0;
  {
    std::lock_guard lock(mutex);
    flush_caches();
    slots = whole_free_extents(spared);
    if (reserve_idle() && spared != Audience::kSameUser) {
      std::optional<uint64_t> offset = reserve_runs.take(options.receive_reserve_bytes);
      free_runs[0].add(*offset, options.receive_reserve_bytes);
      reserve_placed = false;
    }
    for (uint16_t slot : slots) {
      const ExtentInfo& info = extents[slot].info;
      size_t index = static_cast<size_t>(info.audience);
      free_runs[index].take_exactly(info.arena_offset, info.length);
      for (uint64_t g = info.arena_offset / kExtentGranule;
           g < (info.arena_offset + info.length) / kExtentGranule; ++g) {
        granules[g].store(0, std::memory_order_release);
      }
      extent_bytes -= info.length;
      audience_bytes[index] -= info.length;
      --audience_extents[index];
      ++extents_removed;
      extents_removed_total.add();
      given_back += info.length;
    }
  }
  for (uint16_t slot : slots) {
    const Extent& extent = extents[slot];
    tell_removed(extent.info.id);
    pending_bytes.fetch_add(extent.info.length, std::memory_order_relaxed);
    std::lock_guard lock(mutex);
    leave(extent.info.arena_offset, extent.run);
    free_slots.push_back(slot);
  }
  return given_back;
}

void ArenaState::leave(uint64_t offset, const PageRun& run) {
  leaving.push_back({.offset = offset, .run = run});
  leaving_bytes.fetch_add(run.length, std::memory_order_relaxed);
}

size_t ArenaState::free_some(size_t bytes) {
  size_t freed = 0;
  while (freed < bytes) {
    LeavingExtent* extent;
    {
      std::lock_guard lock(mutex);
      if (leaving.empty()) break;
      extent = &leaving.front();  // others only append
    }
    const size_t length = extent->run.length;
    const size_t slice = std::min(bytes - freed, length - extent->unmapped);
    if (slice > 0 && slice < length) pages.begin_decommit(extent->run, extent->unmapped, slice);
    extent->unmapped += slice;
    freed += slice;
    if (extent->unmapped < length) continue;
    pages.decommit(extent->run);
    free_addresses.add(extent->offset, length);
    pending_bytes.fetch_sub(length, std::memory_order_relaxed);
    leaving_bytes.fetch_sub(length, std::memory_order_relaxed);
    std::lock_guard lock(mutex);
    leaving.pop_front();
  }
  return freed;
}

size_t ArenaState::trim(std::optional<Audience> spared) {
  start_trim(spared);
  return free_some(SIZE_MAX);
}

}  // namespace sluice
