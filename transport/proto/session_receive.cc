// What arrives at a session: every value here was chosen by the peer. How the bytes of an
// offer get to where they belong is in session_access.cc.
#include <algorithm>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/proto/session.h>

#include "transport/proto/errors.h"

namespace sluice::proto {
namespace {

// What an unexpected message costs beside its payload: its node in the queue, with the
// segments of an offer.
constexpr uint64_t kUnexpectedRecordBytes = sizeof(Unexpected);
// What each connection may keep before its peer's account is charged, so that an honest
// connection goes on while another one of the same peer (a shared address, a user) has
// filled the account. Connections themselves are limited.
constexpr uint64_t kOwnUnexpectedBytes = 16u << 10;
constexpr uint32_t kOwnWants = 64;

Counter wants_refused("session.wants_refused_table_full");
Counter credit_overrun("session.credit_overrun");

// What a BYE says, to be told as "the peer ...".
const char* why_ended(Code code) {
  switch (code) {
    case Code::kTryAgain:
      return "refused the connection: it has as many as it takes; try again later";
    case Code::kAccessDenied: return "refused the connection: its program does not accept us";
    case Code::kUnsupported:
      return "refused the connection: it requires of a path what this one cannot do";
    default: return "closed the connection";
  }
}

}  // namespace

Status Session::handle_tagged_inline(const wire::TaggedInline& message, PayloadReader& payload,
                                     Instant now) {
  Busy busy(*this);
  last_heard_ = now;
  ++counters_.messages_received;
  if (link_dead_ || finished_) [[unlikely]]
    return Status();
  return on_tagged_inline(message, payload);
}

Status Session::handle_message(ConstBytes header, PayloadReader& payload, Instant now) {
  wire::TaggedInline tagged;
  if (wire::decode_fast(header, tagged)) {
    return handle_tagged_inline(tagged, payload, now);
  }
  Busy busy(*this);
  last_heard_ = now;
  ++counters_.messages_received;
  if (link_dead_ || finished_) [[unlikely]]
    return Status();
  switch (static_cast<wire::MessageType>(header[0])) {
    case wire::MessageType::kOffer: {
      wire::Offer offer;
      SLUICE_RETURN_IF_ERROR(wire::decode(header, offer));
      return on_offer(offer, payload, now);
    }
    case wire::MessageType::kWant: {
      wire::Want want;
      SLUICE_RETURN_IF_ERROR(wire::decode(header, want));
      return on_want(want);
    }
    case wire::MessageType::kDone: {
      wire::Done done;
      SLUICE_RETURN_IF_ERROR(wire::decode(header, done));
      return on_done(done);
    }
    case wire::MessageType::kRelease: {
      wire::Release release;
      SLUICE_RETURN_IF_ERROR(wire::decode(header, release));
      return on_release(release);
    }
    case wire::MessageType::kCancel: {
      wire::Cancel cancel;
      SLUICE_RETURN_IF_ERROR(wire::decode(header, cancel));
      return on_cancel(cancel);
    }
    case wire::MessageType::kCredit: {
      wire::Credit credit;
      SLUICE_RETURN_IF_ERROR(wire::decode(header, credit));
      // A grant may arrive twice or late; limits only grow.
      credit_messages_ = std::max(credit_messages_, credit.messages);
      credit_bytes_ = std::max(credit_bytes_, credit.bytes);
      credit_blocked_ = false;
      if (!queued_.empty()) host_->activate(*this);
      return Status();
    }
    case wire::MessageType::kPing: {
      wire::Ping ping;
      SLUICE_RETURN_IF_ERROR(wire::decode(header, ping));
      pings_ += ping.reply ? 1 : 2;  // with our answer
      if (!ping.reply) send_control(wire::Ping{.nonce = ping.nonce, .reply = true});
      return Status();
    }
    case wire::MessageType::kBye: {
      wire::Bye bye;
      SLUICE_RETURN_IF_ERROR(wire::decode(header, bye));
      bye_received_ = true;
      fault_point("session.bye");
      if (!bye_sent_) {
        state_ = EndpointState::kClosing;
        close_reason_ = Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                               "the peer " + std::string(why_ended(bye.code)));
        fail_all(close_reason_);
        send_control(wire::Bye{});
        bye_sent_ = true;
        bye_due_ = false;
      }
      host_->activate(*this);
      return Status();
    }
    case wire::MessageType::kHello: return corrupt("HELLO after the handshake");
    case wire::MessageType::kData: return corrupt("DATA on a path that has none");
  }
  return corrupt("unknown message type");
}

Status Session::on_offer(wire::Offer& offer, PayloadReader& payload, Instant now) {
  SLUICE_RETURN_IF_ERROR(transfer_->check_offer(offer));
  switch (offer.kind) {
    case wire::OfferKind::kTagged: return on_tagged(offer, payload);
    case wire::OfferKind::kSupply:
    case wire::OfferKind::kRead: return on_supply(offer, payload, now);
    case wire::OfferKind::kWrite: return on_remote_write(offer, payload);
  }
  return corrupt("OFFER of unknown kind");
}

uint64_t Session::capacity_of(const Operation* op) const {
  uint64_t capacity = 0;
  for (const Buffer& buffer : op->completion.buffers) capacity += buffer.size_bytes();
  return capacity;
}

// The first posted receive that takes the message. Ones that match but are too small
// end, untouched, with the next delivery: a callback here could post more of them, and
// the message would miss the receive that fits.
Operation* Session::match_posted(Tag tag, uint64_t total) {
  Operation* next;
  for (Operation* op = posted_.first; op != nullptr; op = next) {
    next = op->next;
    if (!op->match.matches(tag)) continue;
    uint64_t capacity = capacity_of(op);
    if (capacity >= total) [[likely]]
      return op;
    op->match.tag = tag;
    complete_later(
        op, Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                   "the message has " + std::to_string(total) + " bytes, the buffers hold " +
                       std::to_string(capacity) + "; post a larger receive, the message is kept"));
  }
  return nullptr;
}

Status Session::on_tagged_inline(const wire::TaggedInline& message, PayloadReader& payload) {
  ++taken_messages_;
  taken_bytes_ += message.payload_bytes;
  if (taken_messages_ > granted_messages_ || taken_bytes_ > granted_bytes_) [[unlikely]] {
    credit_overrun.add();
    return corrupt("the peer sent more than it was given credit for");
  }
  Operation* op = match_posted(message.tag, message.payload_bytes);
  if (op == nullptr) return store_unexpected(message, payload);
  op->match.tag = message.tag;
  op->total = message.payload_bytes;
  op->completion.receipt.bytes = message.payload_bytes;
  read_inline(op, payload, message.payload_bytes);
  note_consumed(1, message.payload_bytes);
  if (message.report) send_done(message.id, Code::kOk, message.payload_bytes);
  complete(op, Status());
  return Status();
}

Status Session::on_tagged(wire::Offer& offer, PayloadReader& payload) {
  if ((offer.flags & wire::Offer::kInline) != 0) {
    // One with TLVs that are skipped.
    wire::TaggedInline message{
        .id = offer.id, .tag = offer.a, .payload_bytes = offer.payload_bytes};
    message.report = (offer.flags & wire::Offer::kReport) != 0;
    return on_tagged_inline(message, payload);
  }
  if (++taken_messages_ > granted_messages_) {
    credit_overrun.add();
    return corrupt("the peer sent more than it was given credit for");
  }
  std::span<const wire::Segment> segments(offer.segments.data(), offer.segment_count);
  Operation* op = match_posted(offer.a, offer.total);
  if (op == nullptr) {
    SLUICE_TRY(Unexpected * message, store_unexpected(offer.id, offer.a, offer.total, 0));
    message->segment_count = offer.segment_count;
    std::copy(segments.begin(), segments.end(), message->segments.begin());
    cancellable_messages_.insert(message, offer.id);
    return Status();
  }
  op->match.tag = offer.a;
  op->completion.receipt.bytes = offer.total;
  note_consumed(1, 0);
  return start_pull(op, offer.id, segments, offer.total);
}

// `kept`: bytes of it that lie in our arena.
Result<Unexpected*> Session::store_unexpected(uint64_t offer_id, Tag tag, uint64_t total,
                                              uint64_t kept) {
  SLUICE_RETURN_IF_ERROR(keep_unexpected(kept + kUnexpectedRecordBytes));
  Unexpected& message = unexpected_.push_back();
  message.offer_id = offer_id;
  message.tag = tag;
  message.total = total;
  message.is_inline = message.report = false;
  message.kept = kept + kUnexpectedRecordBytes;
  message.segment_count = 0;
  return &message;
}

Status Session::keep_unexpected(uint64_t bytes) {
  const uint64_t kept = unexpected_kept_ + bytes;
  const uint64_t due = kept > kOwnUnexpectedBytes ? kept - kOwnUnexpectedBytes : 0;
  if (due > unexpected_charged_) {
    Status charged = account_->charge(PeerResource::kUnexpectedBytes, due - unexpected_charged_);
    if (!charged.ok())
      return Status(Code::kNoMemory, Scope::kEndpoint, kOrigin, std::string(charged.detail()));
    unexpected_charged_ = due;
  }
  unexpected_kept_ = kept;
  return Status();
}

void Session::let_go_unexpected(uint64_t bytes) {
  unexpected_kept_ -= bytes;
  const uint64_t due =
      unexpected_kept_ > kOwnUnexpectedBytes ? unexpected_kept_ - kOwnUnexpectedBytes : 0;
  if (due == unexpected_charged_) return;
  account_->refund(PeerResource::kUnexpectedBytes, unexpected_charged_ - due);
  unexpected_charged_ = due;
}

void Session::drop_unexpected(UnexpectedQueue::Iterator message) {
  let_go_unexpected(message->kept);
  cancellable_messages_.remove(&*message);
  unexpected_.erase(message);
}

void Session::clear_unexpected() {
  let_go_unexpected(unexpected_kept_);
  cancellable_messages_.clear();
  unexpected_.clear();
}

Status Session::store_unexpected(const wire::TaggedInline& inlined, PayloadReader& payload) {
  uint64_t total = inlined.payload_bytes;
  Buffer bytes;
  if (total > 0) {
    // Before it is queued: a message without its bytes must not be received later.
    Result<Buffer> room = arena_->allocate(total, {.for_receive = true});
    if (!room.ok()) {
      return Status(room.code(), Scope::kEndpoint, kOrigin,
                    "no memory for a message that no receive was posted for: " +
                        std::string(room.status().detail()));
    }
    bytes = std::move(room).value();
  }
  SLUICE_TRY(Unexpected * message, store_unexpected(inlined.id, inlined.tag, total, total));
  if (total > 0) {
    payload.read(bytes.bytes());
    counters_.copied_bytes += total * traits_.inline_in.user;
    counters_.kernel_copied_bytes += total * traits_.inline_in.kernel;
  }
  message->is_inline = true;
  message->report = inlined.report;
  message->payload = std::move(bytes);
  return Status();
}

Status Session::consume_unexpected(Operation* op, UnexpectedQueue::Iterator message) {
  op->match.tag = message->tag;
  op->peer_id = message->offer_id;
  op->total = message->total;
  op->completion.receipt.bytes = message->total;
  if (!message->is_inline) {
    std::array<wire::Segment, wire::kMaxSegments> segments = message->segments;
    uint32_t count = message->segment_count;
    drop_unexpected(message);
    note_consumed(1, 0);
    return start_pull(op, op->peer_id, std::span(segments.data(), count), op->total);
  }
  ConstBytes left = message->total > 0 ? ConstBytes(message->payload.bytes()).first(message->total)
                                       : ConstBytes();
  for (Buffer& buffer : op->completion.buffers) {
    size_t take = std::min(left.size(), buffer.size_bytes());
    if (take > 0) std::memcpy(buffer.data(), left.data(), take);
    left = left.subspan(take);
  }
  // Into the queue, and out of it again.
  op->completion.receipt.copied_bytes += op->total * (uint64_t{traits_.inline_in.user} + 1);
  op->completion.receipt.kernel_copied_bytes += op->total * traits_.inline_in.kernel;
  counters_.copied_bytes += op->total;
  counters_.bytes_received += op->total;
  bool report = message->report;
  drop_unexpected(message);
  note_consumed(1, op->total);
  if (report) send_done(op->peer_id, Code::kOk, op->total);
  complete_later(op, Status());
  return Status();
}

void Session::read_inline(Operation* op, PayloadReader& payload, uint64_t total) {
  uint64_t left = total;
  for (Buffer& buffer : op->completion.buffers) {
    uint64_t take = std::min<uint64_t>(left, buffer.size_bytes());
    if (take > 0) payload.read(buffer.bytes().first(take));
    left -= take;
    if (left == 0) break;
  }
  op->moved = total;
  count_copies(op, counters_, total, traits_.inline_in);
  counters_.bytes_received += total;
}

Status Session::on_want(const wire::Want& want) {
  if (want.kind == wire::WantKind::kOffer) return transfer_->on_pull(want);
  if (state_ != EndpointState::kConnected) {
    send_done(want.id, Code::kUnreachable, 0);
    return Status();
  }
  if (want.kind == wire::WantKind::kRead) return on_remote_read(want);
  if (want.key_id >= kMaxKeyIds) return corrupt("WANT with a key id of 65536 or more");
  if (want.segment_count > 0) SLUICE_RETURN_IF_ERROR(transfer_->check_want_windows(want));
  if (wants_waiting_ >= options_.want_limit) {
    wants_refused.add();
    send_done(want.id, Code::kTryAgain, 0);
    return Status();
  }
  if (wants_waiting_ >= kOwnWants && !account_->charge(PeerResource::kWants).ok()) {
    wants_refused.add();
    send_done(want.id, Code::kTryAgain, 0);
    return Status();
  }
  ++wants_waiting_;
  WantRequest request;
  request.token = want.id;
  request.key_id = want.key_id;
  request.key = want.key;
  request.step = want.a;
  request.into = want.into;
  if (want.has_layout) request.layout = want.layout;
  if (want.segment_count > 0) transfer_->keep_want_windows(want);
  if (want_handler_ == nullptr) return keep_early_want(want, request);
  want_handler_->on_want(*this, request);
  return Status();
}

// A request of the peer is answered, refused or given up.
void Session::end_want() {
  if (wants_waiting_ == 0) return;
  if (--wants_waiting_ >= kOwnWants) account_->refund(PeerResource::kWants);
}

Status Session::keep_early_want(const wire::Want& want, const WantRequest& request) {
  auto [place, added] = early_wants_.try_emplace(want.id);
  if (!added) return corrupt("two WANTs at once with one id");
  place->second = {.order = early_order_++, .request = request, .key = std::string(want.key)};
  return Status();
}

Status Session::on_done(const wire::Done& done) {
  Operation* op = table_.find(done.id);
  if (op == nullptr || op->internal) {
    if (op != nullptr && op->kind == OperationKind::kSupply) {
      op->loaned = false;
      if (op->in_flight > 0) {
        unlink(op);
        op->state = OperationState::kZombie;
      } else {
        release_operation(op);
      }
    }
    return Status();
  }
  if (op->state == OperationState::kFencing) {
    transfer_->answer_fence(op, done);
    return Status();
  }
  bool outgoing = op->kind == OperationKind::kSend || op->kind == OperationKind::kWrite ||
                  op->kind == OperationKind::kSupply;
  if (outgoing) {
    if (op->state == OperationState::kQueued) return corrupt("DONE for what was never offered");
    op->loaned = false;
    if (op->state == OperationState::kReady) return Status();
    if (op->state == OperationState::kZombie) {
      if (op->in_flight == 0) release_operation(op);
      return Status();
    }
    bool complete_push = op->state == OperationState::kOffered;
    if (done.code == Code::kOk && !complete_push) return corrupt("DONE before all DATA was sent");
    // A link may read our memory longer than the peer takes to answer: who is told of the
    // end may write to it.
    if (done.code == Code::kOk && op->in_flight > 0) {
      op->answered = true;
      return Status();
    }
    if (done.code == Code::kOk && op->engaged) transfer_->peer_took(op);
    conclude(op, done.code == Code::kOk ? Status() : from_peer(done.code));
    return Status();
  }
  if (op->state == OperationState::kReady) return Status();
  if (done.code == Code::kOk) return corrupt("DONE without the data");
  conclude(op, from_peer(done.code));
  return Status();
}

Status Session::on_release(const wire::Release& release) {
  for (uint32_t i = 0; i < release.count; ++i) {
    Operation* op = table_.find(release.ids[i]);
    if (op == nullptr || !op->loaned) continue;
    op->loaned = false;
    if (op->state == OperationState::kReady) continue;
    if (op->state == OperationState::kZombie || op->internal) {
      release_operation(op);
    } else {
      complete(op, Status());
    }
  }
  return Status();
}

Status Session::on_cancel(const wire::Cancel& cancel) {
  if (!cancel.offer) return on_want_given_up(cancel.id);
  transfer_->offer_withdrawn();
  if (Unexpected* message = cancellable_messages_.find(cancel.id)) {
    drop_unexpected(message->place);
    note_consumed(1, 0);
    send_done(cancel.id, Code::kCancelled, 0);
    return Status();
  }
  Operation* found = cancellable_.find(cancel.id, [](const Operation& op) {
    return op.state == OperationState::kPulling || op.state == OperationState::kPlacing;
  });
  transfer_->cancel_incoming(cancel.id, found);
  return Status();
}

// The peer gives up a request for a key, or a read.
Status Session::on_want_given_up(uint64_t token) {
  if (want_handler_ != nullptr && want_handler_->on_want_cancelled(*this, token)) end_want();
  if (early_wants_.erase(token) > 0) end_want();
  transfer_->on_want_given_up(token);
  return Status();
}

void Session::link_down(const Status& why, Instant) {
  Busy busy(*this);
  fail_connection(why);
}

}  // namespace sluice::proto
