// Memory in the making for what a peer sends, of an operation that brought none.
#ifndef SLUICE_PROTO_ROOM_H_
#define SLUICE_PROTO_ROOM_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include <sluice/allocator/pending_allocation.h>
#include <sluice/base/tensor_descriptor.h>
#include <sluice/runtime/population.h>
#include <sluice/spi/link.h>

namespace sluice::proto {

// Ending it gives up: the memory goes back in later turns.
struct Room {
  std::unique_ptr<PendingAllocation> memory;  // the operation's own, until it is ready
  std::optional<InTurns> turns;
  TensorDescriptor layout;
  // Of the offer, whose bytes are fetched once the memory is there. None: they follow by
  // themselves.
  std::array<wire::Segment, wire::kMaxSegments> segments;
  uint32_t segment_count = 0;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_ROOM_H_
