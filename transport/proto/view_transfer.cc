#include <sluice/proto/view_transfer.h>

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/proto/incoming.h>
#include <sluice/runtime/shared_copy.h>

#include "transport/proto/errors.h"

namespace sluice::proto {
namespace {

Counter copies_overdue("session.copies_overdue");
Counter foreign_bytes_copied("session.foreign_bytes_copied");

// Bytes copied out of a peer's memory per round: bounds how long other connections wait
// (about half a millisecond). Larger pieces are copied no faster (measured from 256 KiB up).
constexpr uint64_t kPullBytesPerRound = 2u << 20;
// By two threads: each wake of the second one takes some 50 us of it.
constexpr uint64_t kSharedBytesPerRound = 8u << 20;
// What the piece of a round takes a peer at most, unless it loses the processor.
constexpr Duration kUsualCopy = std::chrono::milliseconds(2);
// How long revoke() waits for a peer in the middle of such a piece: time enough to lose the
// processor and get it back. A peer that took so long lately has kUsualCopy.
constexpr Duration kLongestCopy = std::chrono::milliseconds(100);

}  // namespace

// Out.

Started ViewTransfer::describe(Operation* op, wire::Offer& offer) {
  offer.segment_count = 0;
  for (Tensor& tensor : op->tensors) {
    if (tensor.size_bytes() == 0) continue;
    wire::Segment& segment = offer.segments[offer.segment_count];
    Result<bool> exported = link_.export_run(tensor.data(), tensor.size_bytes(), segment);
    if (exported.ok() && !*exported) {
      Status moved = move_to_arena(tensor, op);
      if (!moved.ok()) {
        operations_.complete_later(op, moved);
        return Started::kFailed;
      }
      exported = link_.export_run(tensor.data(), tensor.size_bytes(), segment);
    }
    if (!exported.ok() && exported.code() == Code::kTryAgain) {
      control_.set_blocked();
      return Started::kBlocked;
    }
    if (!exported.ok() || !*exported) {
      operations_.complete_later(op, exported.ok()
                                         ? Status(Code::kInternal, Scope::kOperation, kOrigin,
                                                  "arena memory cannot be offered")
                                         : exported.status());
      return Started::kFailed;
    }
    ++offer.segment_count;
  }
  return Started::kSent;
}

// The peer can map arena memory only: anything else is copied there first, and said so.
Status ViewTransfer::move_to_arena(Tensor& tensor, Operation* op) {
  SLUICE_TRY(Buffer copy, connection_.arena->allocate(tensor.size_bytes()));
  std::memcpy(copy.data(), tensor.data(), tensor.size_bytes());
  op->completion.receipt.copied_bytes += tensor.size_bytes();
  counters_.copied_bytes += tensor.size_bytes();
  foreign_bytes_copied.add(tensor.size_bytes());
  tensor = Tensor(copy.storage(), tensor.descriptor().at_start());
  return Status();
}

// There is no DATA here. A peer that asks too late is told so as elsewhere.
Status ViewTransfer::on_pull(const wire::Want& want) {
  Operation* op = operations_.find(want.about.pull().offer);
  bool sending =
      op != nullptr && (op->kind == OperationKind::kSend || op->kind == OperationKind::kWrite);
  if (sending && op->state == OperationState::kOffered && op->moved == 0)
    return corrupt("WANT for an offer with another length");
  control_.send_done(want.id, Code::kCancelled, 0);
  return Status();
}

Status ViewTransfer::await_copies() {
  if (!link_.peer_is_copying()) return Status();
  PeerAccount& account = *connection_.account;
  const Instant begin = connection_.exact_now();
  const Duration longest = account.overdrawn(begin) ? kUsualCopy : kLongestCopy;
  Instant now = begin;
  while (link_.peer_is_copying() && now - begin < longest) {
    ::sched_yield();
    now = connection_.exact_now();
  }
  if (now - begin > kUsualCopy) account.note_idle_talk(now - begin, now);
  if (!link_.peer_is_copying()) return Status();
  copies_overdue.add();
  const Status why(Code::kTimedOut, Scope::kEndpoint, kOrigin,
                   "the peer did not stop copying memory whose grant was revoked; the connection "
                   "was ended, but the copy may still run: put nothing there that the peer must "
                   "not see");
  connection_.fail(why);
  return why;
}

// In.

Status ViewTransfer::fetch(Operation* op, std::span<const wire::Segment> segments) {
  Pull& pull = pulls_.of(*op);
  op->engaged = true;
  const std::byte* destination =
      op->completion.buffers.empty() ? nullptr : op->completion.buffers[0].data();
  pull.past_caches = traits_.streaming != nullptr && destination != nullptr &&
                     traits_.streaming->past_caches(destination, op->total);
  // In a list before anything can fail: the operation must end with the endpoint.
  op->state = OperationState::kPulling;
  pulling_.push_back(op);
  for (const wire::Segment& segment : segments) {
    SLUICE_TRY(ImportedRun run, link_.import_run(segment));
    pull.runs.emplace_back(run);
    pull.lengths.emplace_back(segment.length);
  }
  connection_.activate();
  return Status();
}

HelperThread* ViewTransfer::helper() const {
  return connection_.population != nullptr ? connection_.population->helper() : nullptr;
}

size_t ViewTransfer::progress() {
  uint64_t budget = helper() != nullptr ? kSharedBytesPerRound : kPullBytesPerRound;
  size_t work = 0;
  while (!pulling_.empty() && budget > 0) {
    if (!link_.begin_copy(withdrawals_seen_)) {
      copies_held_ = true;
      break;
    }
    Operation* op = pulling_.first;
    ++work;
    copy_piece(op, pulls_.of(*op), budget);
    link_.end_copy();
    if (op->moved < op->total) break;
    op->completion.receipt.copied_bytes += op->total;
    counters_.copied_bytes += op->total;
    counters_.bytes_received += op->total;
    incoming_.finish(op);
  }
  return work;
}

// Copies the next bytes of an operation out of the peer's memory, at most `budget`, which
// they reduce.
void ViewTransfer::copy_piece(Operation* op, const Pull& pull, uint64_t& budget) {
  uint64_t from_skip = op->moved;
  size_t run = 0;
  while (run < pull.runs.size() && from_skip >= pull.lengths[run]) from_skip -= pull.lengths[run++];
  uint64_t into_skip = op->moved;
  for (Buffer& buffer : op->completion.buffers) {
    uint64_t size = buffer.size_bytes();
    if (into_skip >= size) {
      into_skip -= size;
      continue;
    }
    while (into_skip < size && op->moved < op->total && budget > 0) {
      uint64_t step = std::min(
          {pull.lengths[run] - from_skip, size - into_skip, op->total - op->moved, budget});
      copy_shared(helper(), buffer.data() + into_skip, pull.runs[run].data + from_skip, step,
                  pull.past_caches);
      into_skip += step;
      from_skip += step;
      op->moved += step;
      budget -= step;
      if (from_skip == pull.lengths[run]) {
        ++run;
        from_skip = 0;
      }
    }
    into_skip = 0;
    if (op->moved == op->total || budget == 0) break;
  }
}

void ViewTransfer::release_peer_memory(Operation* op) {
  Pull& pull = pulls_.of(*op);
  for (ImportedRun& run : pull.runs) {
    if (run.mapping != nullptr) run.mapping->drop_in_context();
  }
  pull.runs.clear();
  pull.lengths.clear();
}

Result<bool> ViewTransfer::deliver_view(Operation* op, const wire::Offer& offer) {
  if (offer.segment_count != 1) return false;
  const wire::Segment& segment = offer.segments[0];
  SLUICE_TRY(ImportedRun run, link_.import_run(segment));
  fault_point("session.view");
  op->completion.tensor = Tensor(views_.make(run, segment.length, offer.id), offer.layout);
  op->completion.receipt.trust = Trust::kShared;
  counters_.bytes_received += segment.length;
  operations_.complete(op, Status());
  return true;
}

void ViewTransfer::offer_withdrawn() {
  ++withdrawals_seen_;
  if (std::exchange(copies_held_, false)) connection_.activate();
}

}  // namespace sluice::proto
