#include <sluice/proto/stream_transfer.h>

#include <algorithm>
#include <array>
#include <utility>

#include <sluice/base/checked.h>
#include <sluice/base/fault_point.h>
#include <sluice/proto/incoming.h>

#include "transport/proto/errors.h"
#include "transport/proto/pieces.h"

namespace sluice::proto {
namespace {

// How many of those that push are compared, from the oldest on: a look at each of thousands would
// cost more than the chunk.
constexpr size_t kCompared = 16;
// Of so many chunks one goes to the oldest operation, however much it has left.
constexpr uint64_t kChunksForOldest = 4;

// Runs of bytes that have come, of all operations. Each gap between them is a chunk of 1 MiB that a
// stream still holds: 16 streams with 100 MiB in their sockets leave 1,600.
constexpr size_t kMostRuns = 4096;

// The operation whose chunk is next: the one with the fewest bytes left. Operations of one length
// so end one after the other. If they took turns they would end together, and the line would stand
// still until the peer has asked for the next: a round trip.
Operation* next_to_push(const OperationList& pushing, uint64_t chunk) {
  Operation* next = pushing.first;
  if (chunk % kChunksForOldest == 0) return next;
  size_t compared = 1;
  for (Operation* op = next->next; op != nullptr && compared < kCompared; op = op->next) {
    ++compared;
    if (op->total - op->moved < next->total - next->moved) next = op;
  }
  return next;
}

}  // namespace

// Out.

uint8_t StreamTransfer::supply_flags(const Operation& op) const {
  if (op.total <= traits_.inline_bytes) return wire::Offer::kInline | wire::Offer::kReport;
  return wire::Offer::kDataFollows;
}

void StreamTransfer::offered(Operation* op, const wire::Offer& offer) {
  if ((offer.flags & wire::Offer::kDataFollows) == 0) return;
  unlink(op);
  start_pushing(op);
}

void StreamTransfer::start_pushing(Operation* op) {
  op->state = OperationState::kPushing;
  pushing_.push_back(op);
  connection_.activate();
}

Status StreamTransfer::on_pull(const wire::Want& want) {
  const wire::PullWant pull = want.about.pull();
  Operation* op = operations_.find(pull.offer);
  bool sending =
      op != nullptr && (op->kind == OperationKind::kSend || op->kind == OperationKind::kWrite);
  if (!sending || op->state != OperationState::kOffered || op->moved > 0) {
    control_.send_done(want.id, Code::kCancelled, 0);  // it ended meanwhile
    return Status();
  }
  if (pull.length != op->total) return corrupt("WANT for an offer with another length");
  op->peer_id = want.id;
  start_pushing(op);
  return Status();
}

// DATA of the operations that push, chunk by chunk, until the link is full.
size_t StreamTransfer::progress() {
  size_t pushed = 0;
  while (has_work()) {
    Operation* op = next_to_push(pushing_, chunks_);
    if (!push_chunk(op)) {
      control_.set_bulk_blocked();
      break;
    }
    ++pushed;
    ++chunks_;
    if (op->moved == op->total) {
      pushing_.remove(op);
      op->state = OperationState::kOffered;
    }
  }
  return pushed;
}

bool StreamTransfer::push_chunk(Operation* op) {
  uint64_t want = std::min<uint64_t>(op->total - op->moved, traits_.data_bytes);
  std::array<ConstBytes, kMaxPlaces> payload;
  size_t pieces = 0;
  uint64_t gathered = take_pieces(op->tensors, op->moved, want, payload, pieces);
  std::byte header[wire::kMaxHeaderBytes];
  size_t length = wire::encode(
      wire::Data{
          .id = op->peer_id, .offset = op->moved, .payload_bytes = static_cast<uint32_t>(gathered)},
      header);
  const ConstBytes message(header, length);
  const std::span<const ConstBytes> runs(payload.data(), pieces);
  // A grant may be revoked while its bytes are under way.
  const bool taken =
      op->grant == 0 ? link_.lend(message, runs, op->id) : link_.push(message, runs, op->id);
  if (!taken) return false;
  fault_point("session.pushed");
  op->moved += gathered;
  op->in_flight += gathered;
  control_.flush_later();
  count_copies(op, counters_, gathered, traits_.bulk_out);
  counters_.bytes_sent += gathered;
  return true;
}

void StreamTransfer::pushed(uint64_t cookie, uint64_t length, Instant) {
  RunningCall call(connection_);
  Operation* op = operations_.find(cookie);
  if (const uint64_t uncopied = link_.uncopied_out(length); uncopied > 0) [[unlikely]] {
    counters_.kernel_copied_bytes -= uncopied;
    if (op != nullptr && op->state != OperationState::kZombie)
      op->completion.receipt.kernel_copied_bytes -= uncopied;
  }
  if (op == nullptr || op->in_flight < length) return;
  op->in_flight -= length;
  if (op->in_flight > 0) return;
  if (op->state == OperationState::kZombie) {
    if (!op->loaned) operations_.release(op);
    return;
  }
  if (op->answered && op->state == OperationState::kOffered)
    return operations_.complete(op, Status());
  bool all_out = op->moved == op->total && op->state == OperationState::kOffered;
  if (all_out && op->kind == OperationKind::kSend && op->level == Level::kSourceReusable)
    operations_.complete(op, Status());
}

// The rest of the bytes need not go out.
void StreamTransfer::on_want_given_up(uint64_t token) {
  Operation* supply = operations_.find_by_peer_id(token, [](const Operation& op) {
    return op.kind == OperationKind::kSupply && op.state == OperationState::kPushing;
  });
  if (supply != nullptr) operations_.complete(supply, from_peer(Code::kCancelled));
}

void StreamTransfer::forget(Operation* op) {
  runs_ -= arrivals_.of(*op).runs();
  arrivals_.of(*op).clear();
  Transfer::forget(op);
}

// In.

Status StreamTransfer::check_offer(const wire::Offer& offer) const {
  const bool is_inline = (offer.flags & wire::Offer::kInline) != 0;
  const bool follows = (offer.flags & wire::Offer::kDataFollows) != 0;
  if (offer.segment_count > 0) return corrupt("OFFER of memory on a path without views");
  if (follows && is_inline) return corrupt("OFFER with DATA to follow where none can");
  const bool may_be_pulled = offer.about.kind() == wire::OfferKind::kTagged ||
                             offer.about.kind() == wire::OfferKind::kWrite;
  if (!is_inline && !follows && !may_be_pulled)
    return corrupt("OFFER without the bytes or a way to get them");
  return Status();
}

// The sender is asked for DATA.
Status StreamTransfer::fetch(Operation* op, std::span<const wire::Segment>) {
  op->state = OperationState::kPlacing;
  fault_point("session.pull");
  control_.send(
      wire::Want{.id = op->id, .about = wire::PullWant{.offer = op->peer_id, .length = op->total}});
  return Status();
}

Status StreamTransfer::expect(Operation* op) {
  op->state = OperationState::kPlacing;
  if (op->total == 0) incoming_.finish(op);
  return Status();
}

Placement StreamTransfer::place(uint64_t id, uint64_t offset, uint64_t length) {
  Placement placement;
  Operation* op = operations_.find(id);
  if (op == nullptr || op->state != OperationState::kPlacing ||
      !range_fits(offset, length, op->total))
    return placement;
  if (op->room) return incoming_.find_place(op, offset, length);
  take_pieces(op->completion.buffers, offset, length, placement.runs, placement.count);
  return placement;
}

Status StreamTransfer::placed(uint64_t id, uint64_t offset, uint64_t length, Instant now) {
  RunningCall call(connection_);
  connection_.last_heard = now;
  Operation* op = operations_.find(id);
  if (op == nullptr || op->state != OperationState::kPlacing)
    return Status();  // it ended; the bytes were dropped
  if (!range_fits(offset, length, op->total)) return corrupt("DATA beyond its transfer");
  if (offset != op->moved || op->engaged) SLUICE_RETURN_IF_ERROR(note_arrival(op, offset, length));
  op->moved += length;
  count_copies(op, counters_, length, traits_.bulk_in);
  counters_.bytes_received += length;
  // With a room it is when that is ready.
  if (op->moved == op->total && !op->room) incoming_.finish(op);
  return Status();
}

// Of bytes that need not be the next ones.
Status StreamTransfer::note_arrival(Operation* op, uint64_t offset, uint64_t length) {
  if (!link_.may_reorder()) return corrupt("DATA out of order");
  if (length == 0) return Status();
  Arrivals& arrivals = arrivals_.of(*op);
  const size_t before = op->engaged ? arrivals.runs() : 0;
  if (!std::exchange(op->engaged, true)) arrivals.reset(op->moved);
  if (!arrivals.add(offset, offset + length)) return corrupt("DATA of bytes that had come");
  runs_ += arrivals.runs();
  runs_ -= before;
  if (runs_ > kMostRuns) return corrupt("DATA that leaves more than 4,096 gaps");
  return Status();
}

}  // namespace sluice::proto
