// Posting and completing operations. What leaves is in session_send.cc, what arrives in
// session_receive.cc and session_access.cc, how it all ends in session_end.cc. Where paths differ
// the Transfer is asked.
#include <sluice/proto/session.h>

#include <algorithm>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/proto/device_transfer.h>
#include <sluice/proto/stream_transfer.h>
#include <sluice/proto/view_transfer.h>

#include "transport/proto/errors.h"

namespace sluice::proto {
namespace {

Counter refused_table_full("session.refused_table_full");

uint64_t random_number(const RandomSource& random) {
  uint64_t number;
  random(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

Link* base_of(const AnyLink& link) {
  return std::visit([](const auto& kind) -> Link* { return kind.get(); }, link);
}

// Each kind of link has its transfer.
std::unique_ptr<Transfer> transfer_over(ViewLink& link, LinkClient& session, TransferHost& host) {
  return std::make_unique<ViewTransfer>(link, session, host);
}
std::unique_ptr<Transfer> transfer_over(StreamLink& link, LinkClient& session, TransferHost& host) {
  return std::make_unique<StreamTransfer>(link, session, host);
}
std::unique_ptr<Transfer> transfer_over(DeviceLink& link, LinkClient& session, TransferHost& host) {
  return std::make_unique<DeviceTransfer>(link, session, host);
}

}  // namespace

Session::Session(SessionParts parts)
    : owned_link_(std::move(parts.link)),
      link_(base_of(owned_link_)),
      arena_(std::move(parts.arena)),
      host_(parts.host),
      traits_(link_->traits()),
      ours_(parts.ours),
      peer_(parts.peer),
      options_(parts.options),
      reason_(std::move(parts.reason)),
      table_(parts.options.operation_limit),
      grants_(parts.random),
      views_(ViewPool::create(this, std::move(parts.mailbox))),
      credit_messages_(parts.peer.credit_messages),
      credit_bytes_(parts.peer.credit_bytes),
      granted_messages_(parts.ours.credit_messages),
      granted_bytes_(parts.ours.credit_bytes),
      last_heard_(host_->now()),
      cancellable_(random_number(parts.random)),
      cancellable_messages_(random_number(parts.random)),
      account_(parts.account ? std::move(parts.account) : unlimited_peer_account()),
      transfer_(std::visit([this](auto& link) { return transfer_over(*link, *this, *this); },
                           owned_link_)) {
  releases_.count = 0;
  // Sessions that fall silent together ask one after the other.
  if (const auto half = static_cast<uint64_t>((options_.ping_interval / 2).count()); half > 0)
    options_.ping_interval -= Duration(random_number(parts.random) % half);
  if (options_.idle_limit > Duration(0))
    arm_timeout(idle_due_ = after(last_heard_, options_.idle_limit));
}

Session::~Session() {
  detach();
  views_->abandon();
}

void Session::detach() {
  // What came before an orderly close can be received until the host goes.
  clear_unexpected();
  if (finished_) return;
  link_dead_ = true;
  finish_close();
}

Status Session::closed_status() const {
  std::string why = close_reason_.ok() ? "the endpoint was closed"
                                       : "the endpoint is closed: " + close_reason_.to_string();
  return Status(Code::kWrongState, Scope::kEndpoint, kOrigin, why + "; connect again");
}

Status Session::closing_status() {
  return Status(Code::kCancelled, Scope::kEndpoint, kOrigin, "the endpoint is being closed");
}

Status Session::check_connected() const {
  return state_ == EndpointState::kConnected ? Status() : closed_status();
}

Result<Operation*> Session::take_operation(OperationKind kind, const PostOptions& options) {
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
                     ? after(host_->exact_now(), options_.operation_timeout)
                     : options.deadline;
  op->match = {};
  op->peer_id = op->total = op->moved = op->in_flight = op->incoming = op->grant = 0;
  op->completion.status = Status();
  op->completion.receipt = Receipt{.path = traits_.properties.path, .posted = host_->now()};
  arm_timeout(op->deadline);
  arm_timeout(after(host_->now(), options_.ping_interval));
  ++counters_.posted;
  return op;
}

void Session::arm_timeout(Instant when) {
  if (when >= next_timeout_) return;
  next_timeout_ = when;
  host_->activate(*this);
}

void Session::release_operation(Operation* op) {
  unlink(op);
  cancellable_.remove(op);
  if (op->engaged) transfer_->forget(op);
  refund_incoming(op);
  op->completion.buffers.clear();
  op->tensors.clear();
  if (op->completion.tensor) op->completion.tensor = Tensor();
  table_.give_back(op);
}

void Session::complete(Operation* op, Status status) {
  unlink(op);
  cancellable_.remove(op);
  if (op->engaged) transfer_->forget(op);
  refund_incoming(op);
  if (!op->internal) ++counters_.completed;
  CompletionSink* sink = op->internal ? nullptr : std::exchange(op->sink, nullptr);
  bool zombie = op->loaned || op->in_flight > 0;
  if (zombie) op->state = OperationState::kZombie;
  if (sink == nullptr) {
    if (!zombie) release_operation(op);
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
  op->completion.receipt.completed = host_->now();
  sink->on_completion(std::move(op->completion));
  op->completion.buffers.clear();
  if (op->completion.tensor) op->completion.tensor = Tensor();
  if (!zombie) table_.reuse(op);
}

void Session::complete_later(Operation* op, Status status) {
  unlink(op);
  op->completion.status = std::move(status);
  op->state = OperationState::kReady;
  ready_.push_back(op);
  host_->activate(*this);
}

size_t Session::deliver_ready() {
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

Result<OperationId> Session::post_send(Tag tag, std::span<const Tensor> segments,
                                       const PostOptions& options) {
  SLUICE_RETURN_IF_ERROR(check_connected());
  if (segments.empty() || segments.size() > wire::kMaxSegments) {
    return invalid("a message has 1 to 16 segments, not " + std::to_string(segments.size()));
  }
  OperationId at_once;
  bool nobody_waits = options.sink == nullptr && options.level == Level::kSourceReusable;
  if (nobody_waits && segments.size() == 1 && try_send_at_once(tag, segments[0], at_once))
    return at_once;
  SLUICE_TRY(Operation * op, take_operation(OperationKind::kSend, options));
  op->match.tag = tag;
  for (const Tensor& tensor : segments) {
    op->total += tensor.size_bytes();
    op->tensors.emplace_back(tensor);
  }
  op->completion.receipt.bytes = op->total;
  OperationId id = op->id;
  start_or_queue(op);
  return id;
}

Result<OperationId> Session::post_receive(TagMatch match, std::span<Buffer> segments,
                                          const PostOptions& options) {
  UnexpectedQueue::Iterator found = unexpected_.begin();
  while (found != unexpected_.end() && !match.matches(found->tag)) ++found;
  // A message that has come wholly before the close can still be received.
  bool leftover = found != unexpected_.end() && found->is_inline;
  if (!leftover) SLUICE_RETURN_IF_ERROR(check_connected());
  if (segments.empty() || segments.size() > wire::kMaxSegments) {
    return invalid("a receive has 1 to 16 buffers, not " + std::to_string(segments.size()));
  }
  SLUICE_TRY(Operation * op, take_operation(OperationKind::kReceive, options));
  op->match = match;
  for (Buffer& buffer : segments) op->completion.buffers.emplace_back(std::move(buffer));
  OperationId id = op->id;
  if (found == unexpected_.end()) {
    posted_.push_back(op);
    return id;
  }
  if (found->total > capacity_of(op)) {
    complete_later(op, invalid("the message has " + std::to_string(found->total) +
                               " bytes, the buffers hold " + std::to_string(capacity_of(op)) +
                               "; post a larger receive, the message is kept"));
    return id;
  }
  Status status = consume_unexpected(op, found);
  if (!status.ok()) fail_connection(status);
  return id;
}

Result<OperationId> Session::post_read(const RemoteKey& key, uint64_t offset, Buffer& into,
                                       const PostOptions& options) {
  SLUICE_RETURN_IF_ERROR(check_connected());
  if (!range_fits(offset, into.size_bytes(), key.length)) {
    return Status(Code::kAccessDenied, Scope::kOperation, kOrigin,
                  "read of " + std::to_string(into.size_bytes()) + " bytes at " +
                      std::to_string(offset) + " is outside the granted " +
                      std::to_string(key.length) + " bytes");
  }
  SLUICE_RETURN_IF_ERROR(transfer_->check_key(key, Right::kRead));
  SLUICE_TRY(Operation * op, take_operation(OperationKind::kRead, options));
  op->total = into.size_bytes();
  op->completion.receipt.bytes = op->total;
  op->completion.buffers.emplace_back(std::move(into));
  OperationId id = op->id;
  transfer_->start_read(op, key, offset);
  return id;
}

Result<OperationId> Session::post_write(const RemoteKey& key, uint64_t offset, Tensor& from,
                                        const PostOptions& options) {
  SLUICE_RETURN_IF_ERROR(check_connected());
  if (!range_fits(offset, from.size_bytes(), key.length)) {
    return Status(Code::kAccessDenied, Scope::kOperation, kOrigin,
                  "write of " + std::to_string(from.size_bytes()) + " bytes at " +
                      std::to_string(offset) + " is outside the granted " +
                      std::to_string(key.length) + " bytes");
  }
  SLUICE_RETURN_IF_ERROR(transfer_->check_key(key, Right::kWrite));
  SLUICE_TRY(Operation * op, take_operation(OperationKind::kWrite, options));
  op->level = Level::kPlaced;
  op->grant = key.grant;
  op->grant_epoch = key.epoch;
  op->grant_offset = offset;
  op->total = from.size_bytes();
  op->completion.receipt.bytes = op->total;
  op->tensors.emplace_back(std::move(from));
  OperationId id = op->id;
  transfer_->start_write(op, key, offset);
  return id;
}

Result<OperationId> Session::post_atomic(const RemoteKey& key, uint64_t offset,
                                         const Atomic& request, Buffer& result,
                                         const PostOptions& options) {
  SLUICE_RETURN_IF_ERROR(check_connected());
  if (!traits_.properties.capabilities.has(Capability::kAtomics)) {
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  "path " + std::string(to_string(traits_.properties.path)) +
                      " has no atomics; RDMA devices that say so have");
  }
  SLUICE_RETURN_IF_ERROR(transfer_->check_key(key, Right::kAtomic));
  if (!range_fits(offset, 8, key.length)) {
    return Status(Code::kAccessDenied, Scope::kOperation, kOrigin,
                  "an atomic at " + std::to_string(offset) + " is outside the granted " +
                      std::to_string(key.length) + " bytes");
  }
  if ((key.address + offset) % 8 != 0)
    return invalid("an atomic needs an address that is a multiple of 8");
  if (result.size_bytes() < 8) return invalid("the result of an atomic needs 8 bytes");
  SLUICE_TRY(Operation * op, take_operation(OperationKind::kAtomic, options));
  op->total = 8;
  op->completion.receipt.bytes = 8;
  op->completion.buffers.emplace_back(std::move(result));
  OperationId id = op->id;
  transfer_->start_atomic(op, key, offset, request);
  return id;
}

Result<OperationId> Session::post_want(WantOptions& want, const PostOptions& options) {
  SLUICE_RETURN_IF_ERROR(check_connected());
  if (want.key_id >= kMaxKeyIds || want.key.size() > kMaxKeyBytes) {
    return invalid("keys have up to 255 bytes and ids below 65536");
  }
  if (want.destination && !want.destination.descriptor().is_compact()) {
    return invalid("a destination must be compact (row-major without gaps)");
  }
  SLUICE_TRY(Operation * op, take_operation(OperationKind::kWant, options));
  wire::Want message{.id = op->id,
                     .kind = wire::WantKind::kKey,
                     .key_id = want.key_id,
                     .a = want.step,
                     .key = want.key};
  if (want.destination) {
    message.into = true;
    message.has_layout = true;
    message.layout = want.destination.descriptor();
    Status opened = transfer_->open_destination(op, want.destination, message);
    if (!opened.ok()) {
      --counters_.posted;
      release_operation(op);
      return opened;
    }
    op->completion.buffers.emplace_back(std::move(want.destination));
  }
  fault_point("session.want");
  send_control(message);
  return op->id;
}

Result<OperationId> Session::post_supply(uint64_t token, const Tensor& tensor,
                                         const PostOptions& options) {
  SLUICE_RETURN_IF_ERROR(check_connected());
  SLUICE_TRY(Operation * op, take_operation(OperationKind::kSupply, options));
  op->level = Level::kConsumed;
  op->peer_id = token;
  op->total = tensor.size_bytes();
  op->completion.receipt.bytes = op->total;
  op->tensors.emplace_back(tensor);
  index_by_peer_id(op);
  end_want();
  OperationId id = op->id;
  transfer_->start_supply(op, token);
  return id;
}

Status Session::refuse_want(uint64_t token, Code code) {
  SLUICE_RETURN_IF_ERROR(check_connected());
  end_want();
  transfer_->drop_want_windows(token);
  send_done(token, code, 0);
  return Status();
}

Status Session::cancel(OperationId id) {
  SLUICE_RETURN_IF_ERROR(owner_.check());  // also asked for by what a child lets go of
  Operation* op = table_.find(id);
  bool ended = op == nullptr || op->internal || op->state == OperationState::kReady ||
               op->state == OperationState::kZombie || op->state == OperationState::kFencing;
  if (ended) return invalid("no such operation is outstanding; it may have just completed");
  end_early(op, Status(Code::kCancelled, Scope::kOperation, kOrigin, "cancelled by the caller"));
  return Status();
}

// Ends an operation before its time; where the peer may have it, it is told, and the
// outcome is unknown unless it is certain that nothing can have been delivered.
void Session::end_early(Operation* op, const Status& why) {
  if (op->answered) return complete_later(op, Status());
  if (transfer_->fence_early(op, why, true)) return;
  bool incoming = op->state == OperationState::kPulling || op->state == OperationState::kPlacing;
  bool offered = op->state == OperationState::kOffered;
  bool outgoing = offered || op->state == OperationState::kPushing;
  if (incoming) {
    if (op->engaged) transfer_->release_peer_memory(op);  // before the peer takes it back
    send_done(op->peer_id, Code::kCancelled, 0);
  } else if (outgoing) {
    withdraw(*op);
  } else if (op->state == OperationState::kPosted &&
             (op->kind == OperationKind::kWant || op->kind == OperationKind::kRead)) {
    send_control(wire::Cancel{.id = op->id, .offer = false});
  } else if (op->state == OperationState::kQueued && op->kind == OperationKind::kSupply) {
    send_done(op->peer_id, why.code(), 0);  // the asker would wait for it
  }
  bool unknown = offered && (op->kind == OperationKind::kSend || op->kind == OperationKind::kWrite);
  // A message that came in part was not received; of a write the part is in place.
  if (op->state == OperationState::kPushing && op->kind == OperationKind::kWrite && op->moved > 0)
    unknown = true;
  if (!unknown) {
    complete_later(op, why);
    return;
  }
  complete_later(op, Status(Code::kOutcomeUnknown, why.scope(), kOrigin,
                            std::string(why.detail()) +
                                "; the peer was offered the data and has not answered"));
}

void Session::set_want_handler(WantHandler* handler) {
  want_handler_ = handler;
  if (handler == nullptr) return;
  std::vector<EarlyWant> early;
  for (auto& [token, want] : early_wants_) early.push_back(std::move(want));
  early_wants_.clear();
  std::sort(early.begin(), early.end(),
            [](const EarlyWant& a, const EarlyWant& b) { return a.order < b.order; });
  for (EarlyWant& want : early) {
    want.request.key = want.key;
    handler->on_want(*this, want.request);
  }
}

}  // namespace sluice::proto
