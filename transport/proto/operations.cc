#include <sluice/proto/operations.h>

#include <utility>

#include <sluice/base/counters.h>

#include "transport/proto/errors.h"

namespace sluice::proto {
namespace {

Counter refused_table_full("session.refused_table_full");

}  // namespace

Result<Operation*> Operations::take(OperationKind kind, const PostOptions& options) {
  Operation* op = table_.take();
  if (op == nullptr) {
    refused_table_full.add();
    return Status(Code::kTryAgain, Scope::kOperation, kOrigin,
                  std::to_string(table_.limit()) +
                      " operations are outstanding on this endpoint; progress, then repeat");
  }
  op->kind = kind;
  op->state = OperationState::kPosted;
  op->level = options.level;
  op->loaned = false;
  op->answered = false;
  op->internal = false;
  op->engaged = false;
  op->sink = options.sink;
  op->completion.user_data = options.user_data;
  // Counted from now, not from the last progress: a program may have computed since.
  op->deadline = options.deadline == Instant{}
                     ? connection_.from_now(connection_.options.operation_timeout)
                     : options.deadline;
  op->match = {};
  op->peer_id = op->total = op->moved = op->in_flight = op->incoming = op->grant = 0;
  if (!op->completion.status.ok()) op->completion.status = Status();
  const Instant now = connection_.now();
  op->completion.receipt = Receipt{.path = connection_.traits.properties.path, .posted = now};
  connection_.arm_timeout(op->deadline);
  connection_.arm_timeout(after(now, connection_.options.ping_interval));
  ++connection_.counters.posted;
  return op;
}

Result<Operation*> Operations::take_internal(OperationKind kind) {
  SLUICE_TRY(Operation * op, take(kind, {.deadline = kNever}));
  --connection_.counters.posted;
  op->internal = true;
  return op;
}

void Operations::take_back(Operation* op) {
  if (!op->internal) --connection_.counters.posted;
  release(op);
}

void Operations::detach(Operation* op) {
  unlink(op);
  cancellable_.remove(op);
  if (op->engaged) keeper_->forget(op);
  op->room.reset();
  if (op->incoming > 0)
    connection_.account->refund(PeerResource::kIncomingBytes, std::exchange(op->incoming, 0));
}

void Operations::release(Operation* op) {
  detach(op);
  op->completion.buffers.clear();
  op->tensors.clear();
  if (op->completion.tensor) op->completion.tensor = Tensor();
  table_.give_back(op);
}

void Operations::complete(Operation* op, Status status) {
  detach(op);
  if (!op->internal) ++connection_.counters.completed;
  CompletionSink* sink = op->internal ? nullptr : std::exchange(op->sink, nullptr);
  bool zombie = op->loaned || op->in_flight > 0;
  if (zombie) op->state = OperationState::kZombie;
  if (sink == nullptr) {
    if (!zombie) release(op);
    return;
  }
  // The callback gets the operation's own completion, in place: the slot counts as free
  // for what it posts, and is used again when it returned.
  OperationId id = op->id;
  if (!zombie) {
    op->tensors.clear();
    table_.retire(op);
  }
  op->completion.id = id;
  op->completion.kind = op->kind;
  op->completion.tag = op->match.tag;
  if (op->kind == OperationKind::kWant && op->completion.tensor && !status.ok()) {
    // The room for a fresh tensor is nobody's now, and it is not whole.
    op->completion.buffers.clear();
    op->completion.tensor = Tensor();
  }
  op->completion.status = std::move(status);
  op->completion.receipt.completed = connection_.now();
  sink->on_completion(std::move(op->completion));
  op->completion.buffers.clear();
  if (op->completion.tensor) op->completion.tensor = Tensor();
  if (!zombie) table_.reuse(op);
}

void Operations::complete_later(Operation* op, Status status) {
  unlink(op);
  op->completion.status = std::move(status);
  op->state = OperationState::kReady;
  ready_.push_back(op);
  connection_.activate();
}

size_t Operations::deliver_ready() {
  size_t delivered = 0;
  // What the callbacks post and end waits for the next round.
  Operation* last = ready_.last;
  while (!ready_.empty()) {
    Operation* op = ready_.first;
    bool was_last = op == last;
    complete(op, std::move(op->completion.status));
    ++delivered;
    if (was_last) break;
  }
  return delivered;
}

uint64_t Operations::count_loans() const {
  uint64_t loans = 0;
  table_.for_each([&](const Operation& op) { loans += op.loaned ? 1 : 0; });
  return loans;
}

}  // namespace sluice::proto
