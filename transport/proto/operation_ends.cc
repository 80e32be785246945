#include <sluice/proto/operation_ends.h>

#include <algorithm>
#include <string>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/proto/timed_out.h>

#include "transport/proto/errors.h"

namespace sluice::proto {
namespace {

Counter ended_by_deadline("session.ended_by_deadline");

}  // namespace

Status OperationEnds::on_done(const wire::Done& done) {
  Operation* op = operations_.find(done.id);
  if (op == nullptr) return Status();
  if (op->internal) {
    if (op->kind != OperationKind::kSupply) return Status();
    op->loaned = false;
    operations_.release_or_linger(op);
    return Status();
  }
  if (op->state == OperationState::kFencing) {
    transfer_.answer_fence(op, done);
    return Status();
  }
  bool outgoing = op->kind == OperationKind::kSend || op->kind == OperationKind::kWrite ||
                  op->kind == OperationKind::kSupply;
  if (outgoing) return on_done_of_source(op, done.code);
  if (op->state == OperationState::kReady) return Status();
  if (done.code == Code::kOk) return corrupt("DONE without the data");
  incoming_.conclude(op, from_peer(done.code));
  return Status();
}

Status OperationEnds::on_done_of_source(Operation* op, Code code) {
  if (op->state == OperationState::kQueued) return corrupt("DONE for what was never offered");
  op->loaned = false;
  if (op->state == OperationState::kReady) return Status();
  if (op->state == OperationState::kZombie) {
    if (op->in_flight == 0) operations_.release(op);
    return Status();
  }
  bool complete_push = op->state == OperationState::kOffered;
  if (code == Code::kOk && !complete_push) return corrupt("DONE before all DATA was sent");
  // A link may read our memory longer than the peer takes to answer: who is told of the
  // end may write to it.
  if (code == Code::kOk && op->in_flight > 0) {
    op->answered = true;
    return Status();
  }
  if (code == Code::kOk && op->engaged) transfer_.peer_took(op);
  incoming_.conclude(op, code == Code::kOk ? Status() : from_peer(code));
  return Status();
}

void OperationEnds::on_release(const wire::Release& release) {
  for (uint32_t i = 0; i < release.count; ++i) {
    Operation* op = operations_.find(release.ids[i]);
    if (op == nullptr || !op->loaned) continue;
    op->loaned = false;
    if (op->state == OperationState::kReady) continue;
    if (op->state == OperationState::kZombie || op->internal) {
      operations_.release(op);
    } else {
      operations_.complete(op, Status());
    }
  }
}

void OperationEnds::on_offer_withdrawn(uint64_t offer_id) {
  Operation* fetching = operations_.find_by_peer_id(offer_id, [](const Operation& op) {
    return op.state == OperationState::kPulling || op.state == OperationState::kPlacing;
  });
  transfer_.cancel_incoming(offer_id, fetching);
}

Status OperationEnds::cancel(OperationId id) {
  Operation* op = operations_.find(id);
  bool ended = op == nullptr || op->internal || op->state == OperationState::kReady ||
               op->state == OperationState::kZombie || op->state == OperationState::kFencing;
  if (ended) return invalid("no such operation is outstanding; it may have just completed");
  end_early(op, Status(Code::kCancelled, Scope::kOperation, kOrigin, "cancelled by the caller"));
  return Status();
}

void OperationEnds::end_early(Operation* op, const Status& why) {
  if (op->answered) return operations_.complete_later(op, Status());
  if (transfer_.fence_early(op, why, true)) return;
  bool incoming = op->state == OperationState::kPulling || op->state == OperationState::kPlacing;
  bool offered = op->state == OperationState::kOffered;
  bool outgoing = offered || op->state == OperationState::kPushing;
  if (incoming) {
    if (op->engaged) transfer_.release_peer_memory(op);  // before the peer takes it back
    control_.send_done(op->peer_id, Code::kCancelled, 0);
  } else if (outgoing) {
    sends_.withdraw(*op);
  } else if (op->state == OperationState::kPosted &&
             (op->kind == OperationKind::kWant || op->kind == OperationKind::kRead)) {
    control_.send(wire::Cancel{.id = op->id, .offer = false});
  } else if (op->state == OperationState::kQueued && op->kind == OperationKind::kSupply) {
    control_.send_done(op->peer_id, why.code(), 0);  // the asker would wait for it
  }
  bool unknown = offered && (op->kind == OperationKind::kSend || op->kind == OperationKind::kWrite);
  // A message that came in part was not received; of a write the part is in place.
  if (op->state == OperationState::kPushing && op->kind == OperationKind::kWrite && op->moved > 0)
    unknown = true;
  if (!unknown) return operations_.complete_later(op, why);
  operations_.complete_later(
      op,
      Status(Code::kOutcomeUnknown, why.scope(), kOrigin,
             std::string(why.detail()) + "; the peer was offered the data and has not answered"));
}

void OperationEnds::fail_all(const Status& why) {
  const bool link_dead = connection_.link_dead;
  operations_.for_each([&](Operation& op) {
    if (op.state == OperationState::kReady || op.state == OperationState::kZombie) return;
    if (link_dead) transfer_.link_stopped(&op);
    if (op.state == OperationState::kFencing) {
      if (!link_dead) return;
      Status decided = std::move(op.completion.status);
      return operations_.complete_later(&op, std::move(decided));
    }
    if (op.internal) {
      if (!op.loaned) return operations_.release_or_linger(&op);
      unlink(&op);
      op.state = OperationState::kZombie;
      return;
    }
    if (op.answered) return operations_.complete_later(&op, Status());
    bool sending = op.kind == OperationKind::kSend || op.kind == OperationKind::kWrite;
    bool told = op.state == OperationState::kOffered || op.state == OperationState::kPushing;
    const bool asked_device = op.kind == OperationKind::kAtomic && op.moved > 0;
    Status end = why;
    if ((sending && told) || asked_device) {
      end = Status(Code::kOutcomeUnknown, Scope::kEndpoint, kOrigin,
                   "the connection ended before the peer answered: " + why.to_string());
    }
    if (!link_dead && transfer_.fence_early(&op, end, false)) return;
    operations_.complete_later(&op, std::move(end));
  });
}

OperationEnds::Overdue OperationEnds::end_overdue(Instant now, UnexpectedQueue& unexpected,
                                                  bool peer_silent) {
  Overdue left;
  operations_.for_each([&](Operation& op) {
    if (op.internal || op.state == OperationState::kReady || op.state == OperationState::kZombie)
      return;
    if (op.state == OperationState::kFencing) {
      if (op.deadline <= now) transfer_.fence_overdue(&op, now);
      if (op.state == OperationState::kFencing) left.next = std::min(left.next, op.deadline);
      return;
    }
    if (op.deadline <= now) {
      ended_by_deadline.add();
      end_early(&op, timed_out(op, unexpected, peer_silent));
      return;
    }
    left.waiting = true;
    left.next = std::min(left.next, op.deadline);
  });
  return left;
}

void OperationEnds::quarantine_reachable() {
  Link& link = connection_.link;
  operations_.for_each([&](Operation& op) {
    if (!transfer_.may_be_reached(op)) return;
    for (Tensor& tensor : op.tensors) link.quarantine(tensor.storage());
    for (Buffer& buffer : op.completion.buffers) link.quarantine(buffer.storage());
  });
}

void OperationEnds::quarantine_loans() {
  operations_.for_each([&](Operation& op) {
    if (!op.loaned && !transfer_.outlives_link(op)) return;
    for (Tensor& tensor : op.tensors) connection_.link.quarantine(tensor.storage());
  });
}

}  // namespace sluice::proto
