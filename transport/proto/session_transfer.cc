// The bytes of an offer: pulled from the peer's memory, placed from a stream, or viewed;
// one-sided access of the peer to ours. Every value here was chosen by the peer.
#include <sluice/proto/session.h>

#include <algorithm>
#include <utility>

#include <sluice/base/copy.h>
#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>

#include "transport/proto/pieces.h"

namespace sluice::proto {
namespace {

constexpr const char* kOrigin = "proto/session";

Counter access_denied("session.access_denied");

// Bytes copied out of a peer's memory per round: bounds how long other connections wait
// (about half a millisecond). Larger pieces are copied no faster (measured from 256 KiB up).
constexpr uint64_t kPullBytesPerRound = 2u << 20;

Status corrupt(const char* what) { return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, what); }

}  // namespace

// Gets the bytes of an offer into op's buffers: from the peer's memory, or by asking
// for DATA.
Status Session::start_pull(Operation* op, uint64_t offer_id,
                           std::span<const wire::Segment> segments, uint64_t total) {
  unlink(op);
  op->peer_id = offer_id;
  index_by_peer_id(op);
  op->total = total;
  op->moved = 0;
  if (traits_.direct) {
    for (const wire::Segment& window : segments) op->windows.emplace_back(window);
    start_moving(op, OperationState::kPulling);
    return Status();
  }
  if (segments.empty() && !traits_.views) {
    op->state = OperationState::kPlacing;
    fault_point("session.pull");
    send_control(
        wire::Want{.id = op->id, .kind = wire::WantKind::kOffer, .a = offer_id, .length = total});
    return Status();
  }
  const std::byte* destination =
      op->completion.buffers.empty() ? nullptr : op->completion.buffers[0].data();
  op->past_caches = traits_.streaming != nullptr && destination != nullptr &&
                    traits_.streaming->past_caches(destination, total);
  // In a list before anything can fail: the operation must end with the endpoint.
  op->state = OperationState::kPulling;
  pulling_.push_back(op);
  for (const wire::Segment& segment : segments) {
    SLUICE_TRY(ImportedRun run, link_->import_run(segment));
    op->runs.emplace_back(run);
    op->run_lengths.emplace_back(segment.length);
  }
  host_->activate(*this);
  return Status();
}

size_t Session::pull_some() {
  uint64_t budget = kPullBytesPerRound;
  size_t work = 0;
  while (!pulling_.empty() && budget > 0) {
    if (!link_->begin_copy(withdrawals_seen_)) {
      copies_held_ = true;
      break;
    }
    Operation* op = pulling_.first;
    ++work;
    copy_piece(op, budget);
    link_->end_copy();
    if (op->moved < op->total) break;
    op->completion.receipt.copied_bytes += op->total;
    counters_.copied_bytes += op->total;
    counters_.bytes_received += op->total;
    finish_incoming(op, Status());
  }
  return work;
}

// Copies the next bytes of an operation out of the peer's memory, at most `budget`, which
// they reduce.
void Session::copy_piece(Operation* op, uint64_t& budget) {
  uint64_t from_skip = op->moved;
  size_t run = 0;
  while (run < op->runs.size() && from_skip >= op->run_lengths[run])
    from_skip -= op->run_lengths[run++];
  uint64_t into_skip = op->moved;
  for (Buffer& buffer : op->completion.buffers) {
    uint64_t size = buffer.size_bytes();
    if (into_skip >= size) {
      into_skip -= size;
      continue;
    }
    while (into_skip < size && op->moved < op->total && budget > 0) {
      uint64_t step = std::min(
          {op->run_lengths[run] - from_skip, size - into_skip, op->total - op->moved, budget});
      copy_bytes(buffer.data() + into_skip, op->runs[run].data + from_skip, step, op->past_caches);
      into_skip += step;
      from_skip += step;
      op->moved += step;
      budget -= step;
      if (from_skip == op->run_lengths[run]) {
        ++run;
        from_skip = 0;
      }
    }
    into_skip = 0;
    if (op->moved == op->total || budget == 0) break;
  }
}

void Session::drop_runs(Operation* op) {
  for (ImportedRun& run : op->runs) {
    if (run.mapping != nullptr) run.mapping->drop();
  }
  op->runs.clear();
  op->run_lengths.clear();
}

// All bytes of an incoming transfer are in place: the peer is told, the operation ends.
void Session::finish_incoming(Operation* op, Status status) {
  fault_point("session.placed");
  drop_runs(op);
  if (op->peer_id != 0) send_done(op->peer_id, status.code(), op->moved);
  if (op->kind == OperationKind::kWant && op->completion.tensor) {
    // A fresh tensor: its memory was only lent to buffers while it was filled.
    op->completion.buffers.clear();
  }
  conclude(op, std::move(status));
}

Placement Session::place(uint64_t id, uint64_t offset, uint64_t length) {
  Placement placement;
  Operation* op = table_.find(id);
  if (op == nullptr || op->state != OperationState::kPlacing ||
      !range_fits(offset, length, op->total))
    return placement;
  take_pieces(op->completion.buffers, offset, length, placement.runs, placement.count);
  return placement;
}

Status Session::placed(uint64_t id, uint64_t offset, uint64_t length, Instant now) {
  Busy busy(*this);
  last_heard_ = now;
  Operation* op = table_.find(id);
  if (op == nullptr || op->state != OperationState::kPlacing)
    return Status();  // it ended; the bytes were dropped
  if (offset != op->moved || !range_fits(offset, length, op->total))
    return corrupt("DATA out of order or beyond its transfer");
  op->moved += length;
  op->completion.receipt.copied_bytes += length * traits_.bulk_in.user;
  op->completion.receipt.kernel_copied_bytes += length * traits_.bulk_in.kernel;
  counters_.copied_bytes += length * traits_.bulk_in.user;
  counters_.kernel_copied_bytes += length * traits_.bulk_in.kernel;
  counters_.bytes_received += length;
  if (op->moved == op->total) finish_incoming(op, Status());
  return Status();
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
  bool view = traits_.views && !has_destination && offer.segment_count == 1;
  if (view) return deliver_view(op, offer, offer.segments[0]);
  if (!has_destination) {
    Status room = make_destination(op, offer.layout);
    if (!room.ok()) {
      refuse_offer(offer, room.code());
      conclude(op, room);
      return Status();
    }
  }
  if ((offer.flags & wire::Offer::kInline) != 0) {
    read_inline(op, payload, offer.total);
    finish_incoming(op, Status());
    return Status();
  }
  if (offer.segment_count > 0) {
    return start_pull(op, offer.id, std::span(offer.segments.data(), offer.segment_count),
                      offer.total);
  }
  op->moved = 0;
  op->state = OperationState::kPlacing;
  index_by_peer_id(op);
  if (op->total == 0) finish_incoming(op, Status());
  return Status();
}

Status Session::deliver_view(Operation* op, const wire::Offer& offer,
                             const wire::Segment& segment) {
  SLUICE_TRY(ImportedRun run, link_->import_run(segment));
  fault_point("session.view");
  op->completion.tensor = Tensor(views_->make(run, segment.length, offer.id), offer.layout);
  op->completion.receipt.trust = Trust::kShared;
  counters_.bytes_received += segment.length;
  complete(op, Status());
  return Status();
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
  if (traits_.direct) return corrupt("OFFER of a write that devices do on this path");
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
    finish_incoming(op, Status());
    return Status();
  }
  return start_pull(op, offer.id, std::span(offer.segments.data(), offer.segment_count),
                    offer.total);
}

Status Session::on_remote_read(const wire::Want& want) {
  if (traits_.direct) return corrupt("WANT of a read that devices do on this path");
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

// The peer asks for the DATA of one of our offers.
Status Session::on_pull(const wire::Want& want) {
  if (traits_.direct) return corrupt("WANT for an offer that devices read on this path");
  Operation* op = table_.find(want.a);
  bool sending =
      op != nullptr && (op->kind == OperationKind::kSend || op->kind == OperationKind::kWrite);
  if (!sending || op->state != OperationState::kOffered || op->moved > 0) {
    send_done(want.id, Code::kCancelled, 0);  // it ended meanwhile
    return Status();
  }
  if (traits_.views || want.length != op->total)
    return corrupt("WANT for an offer with another length");
  op->peer_id = want.id;
  op->state = OperationState::kPushing;
  pushing_.push_back(op);
  host_->activate(*this);
  return Status();
}

}  // namespace sluice::proto
