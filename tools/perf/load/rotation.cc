#include "tools/perf/load/rotation.h"

#include <algorithm>
#include <map>
#include <utility>

namespace sluice::tools {
namespace {

constexpr const char* kOrigin = "perf/rotation";

ExtentId extent_of(Arena& arena, const Buffer& buffer) {
  auto place = arena.locate(buffer.data(), buffer.size_bytes());
  return place ? place->first.id : 0;
}

// Takes what is free in the first extents, in ever smaller pieces, so that the next
// allocation of `bytes` lies in a new one.
Status exhaust_extent(Arena& arena, ExtentId extent, uint64_t bytes, std::vector<Buffer>& taken) {
  // Enough for what the largest first extent holds in pieces of a page.
  constexpr size_t kMostPieces = 100'000;
  for (uint64_t piece = uint64_t{32} << 20; piece >= std::max<uint64_t>(bytes, 256); piece /= 2) {
    while (taken.size() < kMostPieces) {
      SLUICE_TRY(Buffer filler, arena.allocate(piece));
      bool elsewhere = extent_of(arena, filler) != extent;
      if (elsewhere) break;
      taken.push_back(std::move(filler));
    }
  }
  return Status();
}

}  // namespace

Result<std::vector<Buffer>> allocate_over_extents(Arena& arena, uint64_t bytes, uint32_t count,
                                                  std::optional<uint32_t> offset) {
  std::map<ExtentId, std::vector<Buffer>> by_extent;
  std::vector<Buffer> fillers;
  // Small tensors would share one extent: the second half comes from a new one.
  uint32_t made = 0;
  for (; made < count; ++made) {
    if (made == count / 2 && made > 0 && by_extent.size() == 1) {
      SLUICE_RETURN_IF_ERROR(exhaust_extent(arena, by_extent.begin()->first, bytes, fillers));
    }
    SLUICE_TRY(Buffer buffer, allocate_at(arena, bytes, offset));
    // Left over in a cache of the size class.
    for (int tries = 0; made >= count / 2 && by_extent.size() == 1 &&
                        extent_of(arena, buffer) == by_extent.begin()->first && tries < 100'000;
         ++tries) {
      fillers.push_back(std::move(buffer));
      SLUICE_TRY(buffer, allocate_at(arena, bytes, offset));
    }
    by_extent[extent_of(arena, buffer)].push_back(std::move(buffer));
  }
  if (by_extent.size() < 2 && count > 1) {
    return Status(Code::kInternal, Scope::kOperation, kOrigin,
                  "all tensors came from one extent of the arena");
  }
  std::vector<Buffer> mixed;
  while (mixed.size() < count) {
    for (auto& [extent, buffers] : by_extent) {
      if (buffers.empty()) continue;
      mixed.push_back(std::move(buffers.back()));
      buffers.pop_back();
    }
  }
  return mixed;
}

Status Rotation::allocate(Arena& arena, uint64_t bytes, uint32_t count,
                          std::optional<uint32_t> offset) {
  SLUICE_TRY(std::vector<Buffer> buffers, allocate_over_extents(arena, bytes, count, offset));
  slots_.resize(count);
  std::vector<ExtentId> seen;
  for (uint32_t i = 0; i < count; ++i) {
    // Of step 1 + i.
    ExtentId extent = extent_of(arena, buffers[(1 + i) % count]);
    if (std::find(seen.begin(), seen.end(), extent) == seen.end()) {
      seen.push_back(extent);
      first_of_extent_.push_back(i);
    }
  }
  for (uint32_t i = 0; i < count; ++i) slots_[i].buffer = std::move(buffers[i]);
  return Status();
}

Status Rotation::bring_home(Side& side, Slot& slot) {
  if (!slot.publication) return Status();
  Publication& publication = *slot.publication;
  SLUICE_RETURN_IF_ERROR(side.wait_until([&] { return publication.ready(); }));
  Tensor tensor = publication.take();
  slot.publication.reset();
  std::optional<Buffer> buffer;
  SLUICE_RETURN_IF_ERROR(side.wait_until([&] { return buffer || (buffer = tensor.try_thaw()); }));
  slot.buffer = std::move(*buffer);
  return Status();
}

Result<std::byte*> Rotation::bring_home(Side& side, uint64_t step) {
  SLUICE_RETURN_IF_ERROR(bring_home(side, slot(step)));
  return slot(step).buffer.data();
}

Tensor Rotation::frozen(uint64_t step) { return std::move(slot(step).buffer).freeze(); }

Status Rotation::bring_all_home(Side& side) {
  for (Slot& slot : slots_) SLUICE_RETURN_IF_ERROR(bring_home(side, slot));
  return Status();
}

}  // namespace sluice::tools
