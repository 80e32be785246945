// Payload on its way into an operation's buffers: read out of its control message, or fetched by
// the transfer; and the end of an operation whose memory a device may reach.
#ifndef SLUICE_PROTO_INCOMING_H_
#define SLUICE_PROTO_INCOMING_H_

#include <cstdint>
#include <span>
#include <utility>

#include <sluice/allocator/buffer.h>
#include <sluice/allocator/pending_allocation.h>
#include <sluice/proto/connection.h>
#include <sluice/proto/control_queue.h>
#include <sluice/proto/operations.h>
#include <sluice/proto/room.h>
#include <sluice/proto/transfer.h>
#include <sluice/runtime/population.h>
#include <sluice/spi/link.h>

namespace sluice::proto {

// Thread: the context's. Blocks: never.
class Incoming final : private PopulationWaiter {
 public:
  Incoming(Connection& connection, Operations& operations, ControlQueue& control,
           Transfer& transfer)
      : connection_(connection), operations_(operations), control_(control), transfer_(transfer) {}

  // Payload that came in the control message. Requires: it fits. Errors: of device memory, what the
  // device says.
  Status read_inline(Operation* op, PayloadReader& payload, uint64_t total);
  // Gets the bytes of the peer's offer. Errors: kCorrupt.
  Status fetch(Operation* op, uint64_t offer_id, std::span<const wire::Segment> segments,
               uint64_t total);
  // What a non-tagged offer carries, or names: read_inline() and finish(), or fetch().
  Status accept(Operation* op, const wire::Offer& offer, PayloadReader& payload);
  // A fresh tensor for a fetch that brought no destination. While bytes arrive it is a Buffer;
  // the tensor already shares its memory. Where the arena must grow, op->room is there instead, and
  // becomes the destination in a later turn. Errors: kNoMemory, also of the peer's account.
  Status make_destination(Operation* op, const wire::Offer& offer);
  // Gets the bytes of an offer without them once op->room is ready; those that follow the offer
  // have their place earlier, by find_place().
  void await_room(Operation* op, const wire::Offer& offer);
  // Where bytes from `offset` of op->room belong, as many as have pages. Makes more pages for that,
  // few in one call. None with `wait`: not yet; else the operation has ended.
  Placement find_place(Operation* op, uint64_t offset, uint64_t length);
  // Rooms that are ready.
  bool has_work() const { return rooms_ready_; }
  size_t progress();
  // All bytes are in place, or why not: tells the peer, and completes.
  void finish(Operation* op, Status status = Status());
  // Completes as soon as no device can reach the operation's memory.
  void conclude(Operation* op, Status status) {
    if (op->engaged && transfer_.fence(op, status)) return;
    operations_.complete(op, std::move(status));
  }

 private:
  Status read_to_device(Operation* op, PayloadReader& payload, const Buffer& buffer,
                        uint64_t bytes);
  void allocation_ready() noexcept override;
  void give(Operation* op, Buffer buffer, const TensorDescriptor& layout);
  // False: the operation has ended. Requires: the room is ready.
  bool settle(Operation* op);

  Connection& connection_;
  Operations& operations_;
  ControlQueue& control_;
  Transfer& transfer_;
  OperationList waiting_;  // with a room
  bool rooms_ready_ = false;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_INCOMING_H_
