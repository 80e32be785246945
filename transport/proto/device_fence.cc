// How operations of a device transfer end: none completes while a device may reach its memory.
#include <algorithm>
#include <string>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/proto/device_transfer.h>

#include "transport/proto/errors.h"

namespace sluice::proto {
namespace {

// How long a peer may take to say that it has let go of the memory of an operation that was
// ended early, and after that how long our device may: a deadline is late by at most the
// sum. Then the connection ends, which fences everything.
constexpr Duration kFenceTime = std::chrono::seconds(1);

Counter fences_overdue("session.fences_overdue");

}  // namespace

bool DeviceTransfer::fence(Operation* op, Status& status) {
  if (!may_be_reached(*op)) return false;
  close_windows(op);
  start_fence(op, std::move(status));
  return true;
}

void DeviceTransfer::start_fence(Operation* op, Status status) {
  unlink(op);
  op->state = OperationState::kFencing;
  // What ended well keeps its own deadline: the device closes its window in its turn, after
  // what a wire that loses packets makes it repeat.
  Instant limit = after(connection_.now(), kFenceTime);
  op->deadline = status.ok() ? std::max(op->deadline, limit) : limit;
  op->completion.status = std::move(status);
  connection_.arm_timeout(op->deadline);
  ++fencing_;
}

void DeviceTransfer::end_fence(Operation* op) {
  if (may_be_reached(*op)) return;
  --fencing_;
  if (op->engaged && accesses_.of(*op).reply_due)
    control_.send_done(op->peer_id, Code::kCancelled, 0);
  operations_.complete(op, std::move(op->completion.status));
  // It may have been the last thing that the close waited for, and nothing else comes.
  if (connection_.state != EndpointState::kConnected) connection_.activate();
}

// Ends an operation before its time. False: no device has to do with it.
// What is moving and cannot be called back ends when that is over. What the peer may be
// reading or writing ends when the peer says so, if it can be asked.
bool DeviceTransfer::fence_early(Operation* op, const Status& why, bool peer_answers) {
  if (op->state == OperationState::kFencing) return true;  // how it ends is decided
  bool moving = op->state == OperationState::kPulling || op->state == OperationState::kPushing;
  bool told = windows_open(*op) > 0 && op->state != OperationState::kQueued;
  if (!moving && !told) {
    close_windows(op);  // of an offer that never left
    return false;
  }
  Status end = why;
  // The device may have done what it has got: then the peer's memory has changed.
  const char* done = nullptr;
  if (op->moved > 0 && op->kind == OperationKind::kAtomic) done = "the atomic may have been done";
  if (op->moved > 0 && op->kind == OperationKind::kWrite && op->state == OperationState::kPushing)
    done = "a part of the write may be in place";
  if (done != nullptr && why.code() != Code::kOutcomeUnknown) {
    end = Status(Code::kOutcomeUnknown, why.scope(), kOrigin,
                 std::string(why.detail()) + "; " + done);
  }
  if (moving && op->in_flight > 0 && !connection_.link_dead && link_.cancel_moves(op->id))
    op->in_flight = 0;
  DeviceAccess& ours = access(op);
  ours.reply_due = moving && op->peer_id != 0 && !connection_.link_dead;
  if (!moving && peer_answers) {
    bool offer = op->kind != OperationKind::kWant;
    control_.send(wire::Cancel{.id = op->id, .offer = offer});
    if (connection_.link_dead) return true;  // that failed, and ended everything
    ours.answer_due = true;
  } else {
    close_windows(op);
  }
  if (may_be_reached(*op)) {
    start_fence(op, std::move(end));
    return true;
  }
  if (ours.reply_due) control_.send_done(op->peer_id, Code::kCancelled, 0);
  if (op->state != OperationState::kReady) operations_.complete_later(op, std::move(end));
  return true;
}

// The peer has let go of the memory of an operation that is being ended.
void DeviceTransfer::answer_fence(Operation* op, const wire::Done& done) {
  DeviceAccess& ours = access(op);
  if (!ours.answer_due) return;
  ours.answer_due = false;
  bool outgoing = op->kind == OperationKind::kSend || op->kind == OperationKind::kSupply;
  if (outgoing && done.code == Code::kOk)
    op->completion.status = Status();  // it was faster than our change of mind
  close_windows(op);
}

void DeviceTransfer::fence_overdue(Operation* op, Instant now) {
  fences_overdue.add();
  DeviceAccess& ours = access(op);
  if (!ours.answer_due) {
    const Status& end = op->completion.status;
    std::string ended = end.ok() ? "is over" : "ended early (" + std::string(end.detail()) + ")";
    connection_.fail(Status(Code::kTimedOut, Scope::kEndpoint, kOrigin,
                            "the device did not let go of the memory of an operation that " +
                                ended + "; the connection was ended to make it"));
    return;
  }
  ours.answer_due = false;
  if (op->kind == OperationKind::kSend) {
    op->completion.status = Status(Code::kOutcomeUnknown, op->completion.status.scope(), kOrigin,
                                   std::string(op->completion.status.detail()) +
                                       "; the peer was offered the data and has not answered");
  }
  op->deadline = after(now, kFenceTime);
  close_windows(op);
}

void DeviceTransfer::cancel_incoming(uint64_t offer_id, Operation* op) {
  if (op != nullptr && fence_early(op, from_peer(Code::kCancelled), false)) return;
  control_.send_done(offer_id, Code::kCancelled, 0);
  if (op != nullptr) operations_.complete(op, from_peer(Code::kCancelled));
}

}  // namespace sluice::proto
