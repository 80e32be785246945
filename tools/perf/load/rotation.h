// Tensors that a producer publishes in turn, over at least two extents of its arena: a
// consumer that remembers one mapping only would be caught.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <sluice/exchange/exchange.h>

#include "tools/perf/load/workload.h"

namespace sluice::tools {

// `count` buffers of `bytes`, one after the other from different extents as far as there
// are several, each at `offset` from a page's beginning if there is one. Errors: kNoMemory;
// kInternal where a second extent cannot be had.
Result<std::vector<Buffer>> allocate_over_extents(Arena& arena, uint64_t bytes, uint32_t count,
                                                  std::optional<uint32_t> offset = {});

// The place of each tensor: home, or published.
class Rotation {
 public:
  Status allocate(Arena& arena, uint64_t bytes, uint32_t count,
                  std::optional<uint32_t> offset = {});
  uint32_t size() const { return static_cast<uint32_t>(slots_.size()); }
  // Place of the last tensor, past a page's beginning. Requires: all are home.
  uint64_t place_in_page() const {
    return reinterpret_cast<uintptr_t>(slots_.back().buffer.data()) % kPageBytes;
  }
  // Of the first size() steps, from 0 for step 1 on: those whose tensor is the first of its extent.
  std::span<const uint32_t> first_of_extent() const { return first_of_extent_; }

  // Progresses until step's tensor has been released by all; its memory, writable. The
  // tensor itself is had from frozen().
  Result<std::byte*> bring_home(Side& side, uint64_t step);
  // Requires: brought home.
  Tensor frozen(uint64_t step);
  void published(uint64_t step, Publication publication) {
    slot(step).publication.emplace(std::move(publication));
  }
  // Progresses until nothing is out.
  Status bring_all_home(Side& side);

 private:
  struct Slot {
    Buffer buffer;
    std::optional<Publication> publication;
  };
  Slot& slot(uint64_t step) { return slots_[step % slots_.size()]; }
  Status bring_home(Side& side, Slot& slot);

  std::vector<Slot> slots_;
  std::vector<uint32_t> first_of_extent_;
};

}  // namespace sluice::tools
