#include <sluice/proto/incoming.h>

#include <algorithm>
#include <string>

#include <sluice/base/fault_point.h>

#include "transport/proto/errors.h"

namespace sluice::proto {

void Incoming::read_inline(Operation* op, PayloadReader& payload, uint64_t total) {
  uint64_t left = total;
  for (Buffer& buffer : op->completion.buffers) {
    uint64_t take = std::min<uint64_t>(left, buffer.size_bytes());
    if (take > 0) payload.read(buffer.bytes().first(take));
    left -= take;
    if (left == 0) break;
  }
  op->moved = total;
  count_copies(op, connection_.counters, total, connection_.traits.inline_in);
  connection_.counters.bytes_received += total;
}

Status Incoming::fetch(Operation* op, uint64_t offer_id, std::span<const wire::Segment> segments,
                       uint64_t total) {
  unlink(op);
  op->peer_id = offer_id;
  operations_.index_by_peer_id(op);
  op->total = total;
  op->moved = 0;
  return transfer_.fetch(op, segments);
}

Status Incoming::accept(Operation* op, const wire::Offer& offer, PayloadReader& payload) {
  if ((offer.flags & wire::Offer::kInline) == 0) {
    return fetch(op, offer.id, std::span(offer.segments.data(), offer.segment_count), offer.total);
  }
  read_inline(op, payload, offer.total);
  finish(op);
  return Status();
}

Status Incoming::make_destination(Operation* op, const TensorDescriptor& layout) {
  const uint64_t bytes = std::max<uint64_t>(layout.span_bytes(), 1);
  // Until all of it has come it is the peer's doing that it is not free.
  Status charged = connection_.account->charge(PeerResource::kIncomingBytes, bytes);
  if (!charged.ok())
    return Status(Code::kNoMemory, Scope::kOperation, kOrigin, std::string(charged.detail()));
  op->incoming = bytes;
  SLUICE_TRY(Buffer buffer, connection_.arena->allocate(bytes, {.for_receive = true}));
  SLUICE_RETURN_IF_ERROR(buffer.reshape(TensorDescriptor::bytes(layout.span_bytes())));
  op->completion.tensor = Tensor(buffer.storage(), layout);
  op->completion.buffers.emplace_back(std::move(buffer));
  return Status();
}

void Incoming::finish(Operation* op) {
  fault_point("session.placed");
  if (op->engaged) transfer_.release_peer_memory(op);
  if (op->peer_id != 0) control_.send_done(op->peer_id, Code::kOk, op->moved);
  if (op->kind == OperationKind::kWant && op->completion.tensor) {
    // A fresh tensor: its memory was only lent to buffers while it was filled.
    op->completion.buffers.clear();
  }
  conclude(op, Status());
}

}  // namespace sluice::proto
