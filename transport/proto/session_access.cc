// Access to our memory that we grant, and its use by the peer; answers to our own requests. What
// arrives here was chosen by the peer.
#include <sluice/proto/session.h>

#include <algorithm>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>

#include "transport/proto/errors.h"

namespace sluice::proto {
namespace {

Counter access_denied("session.access_denied");

}  // namespace

Result<RemoteKey> Session::add_grant(const StorageRef& storage, std::byte* data, uint64_t length,
                                     const GrantOptions& options) {
  SLUICE_RETURN_IF_ERROR(check_connected());
  if (!storage) return invalid("an empty buffer cannot be granted");
  bool atomics = traits_.properties.capabilities.has(Capability::kAtomics);
  if (has_right(options.rights, Right::kAtomic) && !atomics) {
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  "this path has no atomics; RDMA devices that say so have");
  }
  SLUICE_RETURN_IF_ERROR(account_->charge(PeerResource::kGrants));
  PeerCharge charge(account_, PeerResource::kGrants);
  Grant grant{.storage = storage,
              .data = data,
              .length = length,
              .rights = options.rights,
              .deadline = options.deadline};
  grant.charge = std::move(charge);
  RemoteKey device;
  SLUICE_RETURN_IF_ERROR(transfer_->open_grant(grant, device));
  WindowId opened = grant.window;
  Result<RemoteKey> key = grants_.add(std::move(grant));
  if (!key.ok()) {
    (void)transfer_->close_grant(opened);
    return key;
  }
  key->address = device.address;
  key->device_key = device.device_key;
  return key;
}

Result<RemoteKey> Session::grant(const Buffer& memory, const GrantOptions& options) {
  return add_grant(memory.storage(), memory.data(), memory.size_bytes(), options);
}

Result<RemoteKey> Session::grant(const Tensor& memory, const GrantOptions& options) {
  if (options.rights != Right::kRead)
    return invalid("a tensor is immutable: it can be granted for reading only");
  return add_grant(memory.storage(), const_cast<std::byte*>(memory.data()), memory.size_bytes(),
                   options);
}

Status Session::revoke(const RemoteKey& key) {
  const Grant* grant = grants_.find(key.grant);
  if (grant == nullptr) return invalid("no such grant; it was revoked before");
  if (!link_dead_) {
    Status closed = transfer_->close_grant(grant->window);
    if (!closed.ok()) fail_connection(closed);  // the only fence that is left
  }
  grants_.remove(key.grant);
  // Writes through it run on this thread only: ending them here is the fence. Reads are stopped
  // below; of what the peer copies by itself we wait for the end of a piece.
  const uint64_t withdrawn = withdrawn_;
  table_.for_each([&](Operation& op) {
    if (!op.internal || op.grant != key.grant || link_dead_) return;
    if (op.kind == OperationKind::kSupply) return stop_read(&op);
    send_done(op.peer_id, Code::kAccessDenied, 0);
    if (!link_dead_) release_operation(&op);  // else all of them ended
  });
  if (withdrawn != withdrawn_ && !link_dead_) transfer_->await_copies();
  return Status();
}

// A read of the peer whose grant is void. What the link has of its bytes it keeps as they
// are now; the rest never leaves.
void Session::stop_read(Operation* op) {
  if (op->in_flight > 0) transfer_->settle(*op);
  const bool under_way =
      op->state == OperationState::kQueued || op->state == OperationState::kPushing;
  if (under_way) send_done(op->peer_id, Code::kAccessDenied, 0);
  if (op->loaned && !link_dead_) withdraw(*op);
  if (!under_way || link_dead_) return;
  if (op->in_flight > 0) {
    unlink(op);
    op->state = OperationState::kZombie;
  } else {
    release_operation(op);
  }
}

// Tells the peer that an offer is void. Over a path with views the peer stops copying at
// once, whenever it reads the message.
void Session::withdraw(const Operation& op) {
  send_control(wire::Cancel{.id = op.id, .offer = true});
  ++withdrawn_;
  if (!link_dead_) transfer_->count_withdrawals(withdrawn_);
}

// Gets the bytes of an offer into op's buffers.
Status Session::start_pull(Operation* op, uint64_t offer_id,
                           std::span<const wire::Segment> segments, uint64_t total) {
  unlink(op);
  op->peer_id = offer_id;
  index_by_peer_id(op);
  op->total = total;
  op->moved = 0;
  return transfer_->fetch(op, segments);
}

// All bytes of an incoming transfer are in place: the peer is told, the operation ends.
void Session::finish_incoming(Operation* op) {
  fault_point("session.placed");
  if (op->engaged) transfer_->release_peer_memory(op);
  if (op->peer_id != 0) send_done(op->peer_id, Code::kOk, op->moved);
  if (op->kind == OperationKind::kWant && op->completion.tensor) {
    // A fresh tensor: its memory was only lent to buffers while it was filled.
    op->completion.buffers.clear();
  }
  conclude(op, Status());
}

// Completes an operation as soon as no device can reach its memory.
void Session::conclude(Operation* op, Status status) {
  if (op->engaged && transfer_->fence(op, status)) return;
  complete(op, std::move(status));
}

// Says no to an offer that answers one of our requests.
void Session::refuse_offer(const wire::Offer& offer, Code code) { send_done(offer.id, code, 0); }

// A fresh tensor for a fetch that brought no destination. While bytes arrive it is a
// Buffer; `result` already shares its memory.
Status Session::make_destination(Operation* op, const TensorDescriptor& layout) {
  const uint64_t bytes = std::max<uint64_t>(layout.span_bytes(), 1);
  // Until all of it has come it is the peer's doing that it is not free.
  Status charged = account_->charge(PeerResource::kIncomingBytes, bytes);
  if (!charged.ok())
    return Status(Code::kNoMemory, Scope::kOperation, kOrigin, std::string(charged.detail()));
  op->incoming = bytes;
  SLUICE_TRY(Buffer buffer, arena_->allocate(bytes, {.for_receive = true}));
  SLUICE_RETURN_IF_ERROR(buffer.reshape(TensorDescriptor::bytes(layout.span_bytes())));
  op->completion.tensor = Tensor(buffer.storage(), layout);
  op->completion.buffers.emplace_back(std::move(buffer));
  return Status();
}

Status Session::on_supply(wire::Offer& offer, PayloadReader& payload, Instant) {
  Operation* op = table_.find(offer.a);
  bool read = offer.kind == wire::OfferKind::kRead;
  OperationKind kind = read ? OperationKind::kRead : OperationKind::kWant;
  if (op == nullptr || op->kind != kind || op->state != OperationState::kPosted) {
    refuse_offer(offer, Code::kCancelled);  // ours ended meanwhile
    return Status();
  }
  op->peer_id = offer.id;
  bool has_destination = !op->completion.buffers.empty();
  if (read && offer.total != op->total) return corrupt("a read answered with another length");
  if (has_destination && !read) {
    const TensorDescriptor& ours = op->completion.buffers[0].descriptor();
    if (!offer.layout.is_compact() || !ours.same_layout(offer.layout)) {
      refuse_offer(offer, Code::kInvalidArgument);
      conclude(op, Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                          "the tensor is " + offer.layout.to_string() + ", the destination " +
                              ours.to_string()));
      return Status();
    }
  }
  op->total = offer.total;
  op->completion.receipt.bytes = offer.total;
  if (!has_destination) {
    SLUICE_TRY(bool viewed, transfer_->deliver_view(op, offer));
    if (viewed) return Status();
    Status room = make_destination(op, offer.layout);
    if (!room.ok()) {
      refuse_offer(offer, room.code());
      conclude(op, room);
      return Status();
    }
  }
  if ((offer.flags & wire::Offer::kInline) != 0) {
    read_inline(op, payload, offer.total);
    finish_incoming(op);
    return Status();
  }
  if (offer.segment_count > 0) {
    return start_pull(op, offer.id, std::span(offer.segments.data(), offer.segment_count),
                      offer.total);
  }
  op->moved = 0;
  index_by_peer_id(op);
  return transfer_->expect(op);
}

Result<Operation*> Session::take_internal(OperationKind kind, const Grant& grant, uint64_t offset,
                                          uint64_t length) {
  SLUICE_TRY(Operation * op, take_operation(kind, {.deadline = kNever}));
  --counters_.posted;
  op->internal = true;
  op->total = length;
  std::array<int64_t, 1> shape = {static_cast<int64_t>(length)};
  std::array<int64_t, 1> stride = {1};
  uint64_t byte_offset = static_cast<uint64_t>(grant.data - grant.storage->data()) + offset;
  auto range = TensorDescriptor::strided(shape, stride, uint8, byte_offset);
  if (!range.ok()) {
    release_operation(op);
    return range.status();
  }
  if (kind == OperationKind::kReceive) {
    op->completion.buffers.emplace_back(grant.storage, *range);
  } else {
    op->tensors.emplace_back(grant.storage, *range);
  }
  return op;
}

Status Session::on_remote_write(wire::Offer& offer, PayloadReader& payload) {
  SLUICE_RETURN_IF_ERROR(transfer_->check_remote(Right::kWrite));
  const Grant* grant = grants_.check(offer.a, offer.epoch, Right::kWrite, offer.offset, offer.total,
                                     [&] { return host_->exact_now(); });
  if (grant == nullptr) {
    access_denied.add();
    send_done(offer.id, Code::kAccessDenied, 0);
    return Status();
  }
  Result<Operation*> taken =
      take_internal(OperationKind::kReceive, *grant, offer.offset, offer.total);
  if (!taken.ok()) {
    send_done(offer.id, Code::kTryAgain, 0);
    return Status();
  }
  Operation* op = *taken;
  op->grant = offer.a;
  op->peer_id = offer.id;
  if ((offer.flags & wire::Offer::kInline) != 0) {
    read_inline(op, payload, offer.total);
    finish_incoming(op);
    return Status();
  }
  return start_pull(op, offer.id, std::span(offer.segments.data(), offer.segment_count),
                    offer.total);
}

Status Session::on_remote_read(const wire::Want& want) {
  SLUICE_RETURN_IF_ERROR(transfer_->check_remote(Right::kRead));
  const Grant* grant = grants_.check(want.a, want.key_id, Right::kRead, want.offset, want.length,
                                     [&] { return host_->exact_now(); });
  if (grant == nullptr) {
    access_denied.add();
    send_done(want.id, Code::kAccessDenied, 0);
    return Status();
  }
  Result<Operation*> taken =
      take_internal(OperationKind::kSupply, *grant, want.offset, want.length);
  if (!taken.ok()) {
    send_done(want.id, Code::kTryAgain, 0);
    return Status();
  }
  (*taken)->grant = want.a;
  (*taken)->peer_id = want.id;
  index_by_peer_id(*taken);
  start_or_queue(*taken);
  return Status();
}

}  // namespace sluice::proto
