#include <sluice/proto/transfer.h>

#include "transport/proto/errors.h"

namespace sluice::proto {

Status Transfer::expect(Operation*) {
  return corrupt("OFFER without the bytes or a way to get them");
}

Status Transfer::check_want_windows(const wire::Want&) const {
  return corrupt("WANT with windows on a path without them");
}

void Transfer::start_read(Operation* op, const RemoteKey& key, uint64_t offset) {
  control_.send(wire::Want{
      .id = op->id,
      .about = wire::ReadWant{
          .grant = key.grant, .epoch = key.epoch, .offset = offset, .length = op->total}});
}

void Transfer::start_atomic(Operation* op, const RemoteKey&, uint64_t, const Atomic&) {
  operations_.complete_later(
      op, Status(Code::kUnsupported, Scope::kOperation, kOrigin, "the path has no atomics"));
}

void Transfer::cancel_incoming(uint64_t offer_id, Operation* op) {
  if (op == nullptr) return;
  if (op->engaged) release_peer_memory(op);  // before the peer takes it back
  control_.send_done(offer_id, Code::kCancelled, 0);
  operations_.complete(op, from_peer(Code::kCancelled));
}

Status check_offer_of_memory(const wire::Offer& offer) {
  const bool is_inline = (offer.flags & wire::Offer::kInline) != 0;
  if ((offer.flags & wire::Offer::kDataFollows) != 0)
    return corrupt("OFFER with DATA to follow where none can");
  if (!is_inline && offer.segment_count == 0)
    return corrupt("OFFER without the bytes or a way to get them");
  return Status();
}

// A tensor goes as memory, however small it is: who asked for it can look at it in place.
uint8_t supply_flags_by_memory(const Operation& op, uint64_t inline_bytes) {
  const bool by_memory = op.total > 0 && !op.internal;
  const bool rides = !by_memory && op.total <= inline_bytes;
  return rides ? wire::Offer::kInline | wire::Offer::kReport : 0;
}

}  // namespace sluice::proto
