// What leaves a session: offers, and the small messages that keep it going.
#include <algorithm>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/proto/session.h>

#include "transport/proto/errors.h"

namespace sluice::proto {
namespace {

// Control messages that wait for a peer which does not read. A peer that lets more
// than this pile up is not taking part.
constexpr size_t kMostBacklogBytes = 1u << 20;
// In such pieces its memory is charged to the peer's account.
constexpr uint64_t kBacklogCharge = 16u << 10;

}  // namespace

// Sends keep their order. One that waits for credit holds up other sends only: the peer
// may need an answer or a write before it posts the receive that gives the credit.
void Session::start_or_queue(Operation* op) {
  bool in_turn = queued_.empty() || (credit_blocked_ && op->kind != OperationKind::kSend);
  if (in_turn && start(op) != Started::kBlocked) return;
  op->state = OperationState::kQueued;
  queued_.push_back(op);
}

void Session::run_queue() {
  credit_blocked_ = false;
  for (Operation* op = queued_.first;
       op != nullptr && (state_ == EndpointState::kConnected || bye_due_);) {
    Operation* next = op->next;
    bool waits_for_credit = credit_blocked_ && op->kind == OperationKind::kSend;
    if (!waits_for_credit) {
      Started started = start(op);
      if (link_dead_) return;
      if (started == Started::kBlocked) {
        bool by_credit = credit_blocked_ && op->kind == OperationKind::kSend;
        if (!by_credit) return;  // no room for anybody
      } else if (op->list == &queued_) {
        queued_.remove(op);
      }
    }
    op = next;
  }
}

Started Session::start(Operation* op) {
  switch (op->kind) {
    case OperationKind::kSend: return start_send(op);
    case OperationKind::kWrite: return start_write(op);
    default: return start_supply(op);
  }
}

// A message that is over once it is on its way spares the peer an answer if it goes eager. Without
// credit for its bytes it goes by rendezvous.
bool Session::eager_by_hint(uint64_t total) const {
  return total <= traits_.most_inline_bytes && sent_bytes_ + total <= credit_bytes_ &&
         link_->prefer_eager();
}

// A small message of one segment that nobody wants to hear of again, with room and credit
// for it: over before the call returns, without an operation. False: take the long way.
bool Session::try_send_at_once(Tag tag, const Tensor& segment, OperationId& id) {
  if (!queued_.empty() || blocked_ || backlog_start_ < backlog_.size()) return false;
  ConstBytes payload = segment.bytes();
  uint64_t total = payload.size();
  bool credit = sent_messages_ < credit_messages_ && sent_bytes_ + total <= credit_bytes_;
  if (!credit) return false;
  if (total > traits_.inline_bytes && !eager_by_hint(total)) return false;
  // Ids of such sends have slot 0, which no operation has.
  id = ++at_once_ << 32;
  std::byte header[wire::kTaggedInlineBytes];
  wire::encode(
      wire::TaggedInline{.id = id, .tag = tag, .payload_bytes = static_cast<uint32_t>(total)},
      header);
  if (!link_->send(header, std::span(&payload, 1))) {
    blocked_ = true;
    return false;
  }
  fault_point("session.offered");
  want_flush();
  ++counters_.posted;
  ++counters_.completed;
  ++counters_.messages_sent;
  ++sent_messages_;
  sent_bytes_ += total;
  counters_.bytes_sent += total;
  counters_.copied_bytes += total * traits_.inline_out.user;
  counters_.kernel_copied_bytes += total * traits_.inline_out.kernel;
  return true;
}

Started Session::start_send(Operation* op) {
  bool inline_payload = op->total <= traits_.inline_bytes ||
                        (op->level == Level::kSourceReusable && eager_by_hint(op->total));
  bool credit = sent_messages_ < credit_messages_ &&
                (!inline_payload || sent_bytes_ + op->total <= credit_bytes_);
  if (!credit) {
    credit_blocked_ = true;
    return Started::kBlocked;
  }
  wire::Offer offer;
  offer.id = op->id;
  offer.kind = wire::OfferKind::kTagged;
  offer.a = op->match.tag;
  offer.total = op->total;
  if (inline_payload) {
    offer.flags =
        wire::Offer::kInline | (op->level != Level::kSourceReusable ? wire::Offer::kReport : 0);
  }
  Started started = send_offer(op, offer);
  if (started != Started::kSent) return started;
  ++sent_messages_;
  if (!inline_payload) return started;
  sent_bytes_ += op->total;
  if (op->level != Level::kSourceReusable) return started;
  if (op->sink != nullptr) {
    complete_later(op, Status());
  } else {
    // Nobody is told, and the bytes are copied: it is over.
    ++counters_.completed;
    release_operation(op);
  }
  return started;
}

Started Session::start_write(Operation* op) {
  wire::Offer offer;
  offer.id = op->id;
  offer.kind = wire::OfferKind::kWrite;
  offer.a = op->grant;
  offer.epoch = op->grant_epoch;
  offer.offset = op->grant_offset;
  offer.total = op->total;
  if (op->total <= traits_.inline_bytes) offer.flags = wire::Offer::kInline | wire::Offer::kReport;
  return send_offer(op, offer);
}

Started Session::start_supply(Operation* op) {
  wire::Offer offer;
  offer.id = op->id;
  offer.kind = op->internal ? wire::OfferKind::kRead : wire::OfferKind::kSupply;
  offer.a = op->peer_id;
  offer.total = op->total;
  if (!op->internal) {
    offer.has_layout = true;
    offer.layout = op->tensors[0].descriptor();
  }
  offer.flags = transfer_->supply_flags(*op);
  fault_point("session.supply");
  Started started = send_offer(op, offer);
  if (started == Started::kFailed)
    send_done(op->peer_id, op->completion.status.code(), 0);  // the asker would wait for it
  return started;
}

// Sends the offer of a started operation, with its payload if that rides along, else with what
// the path needs to get it.
Started Session::send_offer(Operation* op, wire::Offer& offer) {
  std::array<ConstBytes, wire::kMaxSegments> payload;
  size_t pieces = 0;
  bool inline_payload = (offer.flags & wire::Offer::kInline) != 0;
  if (inline_payload) {
    offer.payload_bytes = static_cast<uint32_t>(op->total);
    for (const Tensor& tensor : op->tensors) payload[pieces++] = tensor.bytes();
  } else {
    Started described = transfer_->describe(op, offer);
    if (described != Started::kSent) return described;
  }
  if (backlog_start_ < backlog_.size()) return Started::kBlocked;
  std::byte header[wire::kMaxHeaderBytes];
  size_t length = wire::encode(offer, header);
  if (!link_->send(ConstBytes(header, length), std::span(payload.data(), pieces))) {
    blocked_ = true;
    return Started::kBlocked;
  }
  fault_point("session.offered");
  op->state = OperationState::kOffered;
  want_flush();
  ++counters_.messages_sent;
  if (inline_payload) {
    op->moved = op->total;
    count_copies(op, counters_, op->total, traits_.inline_out);
    counters_.bytes_sent += op->total;
    return Started::kSent;
  }
  if (offer.segment_count > 0) counters_.bytes_sent += op->total;
  transfer_->offered(op, offer);
  return Started::kSent;
}

void Session::writable(Instant) {
  blocked_ = offers_held_ = false;
  host_->activate(*this);
}

template <typename Message>
void Session::send_control(const Message& message) {
  if (link_dead_ || finished_) return;
  std::byte header[wire::kMaxHeaderBytes];
  ConstBytes bytes(header, wire::encode(message, header));
  bool waiting = blocked_ || backlog_start_ < backlog_.size();
  if (!waiting && link_->send(bytes, {})) {
    ++counters_.messages_sent;
    want_flush();
    return;
  }
  queue_bytes(bytes);
}

template void Session::send_control(const wire::Want&);
template void Session::send_control(const wire::Cancel&);
template void Session::send_control(const wire::Ping&);
template void Session::send_control(const wire::Bye&);

void Session::queue_bytes(ConstBytes header) {
  if (backlog_.size() - backlog_start_ + header.size() > kMostBacklogBytes) {
    fail_connection(Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                           "the peer does not read: 1 MiB of control messages waits for it"));
    return;
  }
  if (backlog_.size() + header.size() > control_charged_) {
    Status charged = account_->charge(PeerResource::kControlBytes, kBacklogCharge);
    if (!charged.ok()) {
      fail_connection(Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                             "the peer does not read: " + std::string(charged.detail())));
      return;
    }
    control_charged_ += kBacklogCharge;
  }
  // A peer that reads as slowly as it asks never lets it run empty: what went out is
  // dropped here, once it is more than what waits.
  if (backlog_start_ > backlog_.size() / 2) {
    backlog_.erase(backlog_.begin(), backlog_.begin() + static_cast<ptrdiff_t>(backlog_start_));
    backlog_start_ = 0;
  }
  backlog_.insert(backlog_.end(), header.begin(), header.end());
  host_->activate(*this);
}

// True when nothing is left waiting.
bool Session::flush_backlog() {
  while (backlog_start_ < backlog_.size()) {
    uint16_t length;
    std::memcpy(&length, backlog_.data() + backlog_start_ + 2, 2);
    if (!link_->send(ConstBytes(backlog_.data() + backlog_start_, length), {})) {
      blocked_ = true;
      return false;
    }
    ++counters_.messages_sent;
    needs_flush_ = true;
    backlog_start_ += length;
  }
  if (!backlog_.empty()) {
    backlog_.clear();
    backlog_start_ = 0;
    if (backlog_.capacity() > 4096) backlog_.shrink_to_fit();
    account_->refund(PeerResource::kControlBytes, std::exchange(control_charged_, 0));
  }
  return true;
}

void Session::send_done(uint64_t id, Code code, uint64_t bytes) {
  fault_point("session.done");
  send_control(wire::Done{.id = id, .code = code, .bytes = bytes});
}

void Session::send_releases() {
  if (releases_.count == 0) return;
  fault_point("session.release");
  send_control(releases_);
  releases_.count = 0;
}

void Session::view_ended(uint64_t offer_id) noexcept {
  if (link_dead_ || finished_) return;
  releases_.ids[releases_.count++] = offer_id;
  if (releases_.count == wire::kMaxReleases) send_releases();
  host_->activate(*this);
}

// Half a window at a time: a CREDIT per message would double the traffic.
void Session::note_consumed(uint64_t messages, uint64_t bytes) {
  consumed_messages_ += messages;
  consumed_bytes_ += bytes;
  bool messages_due =
      consumed_messages_ + ours_.credit_messages - granted_messages_ > ours_.credit_messages / 2;
  bool bytes_due = consumed_bytes_ + ours_.credit_bytes - granted_bytes_ > ours_.credit_bytes / 2;
  if (!messages_due && !bytes_due) return;
  granted_messages_ = consumed_messages_ + ours_.credit_messages;
  granted_bytes_ = consumed_bytes_ + ours_.credit_bytes;
  send_control(wire::Credit{.messages = granted_messages_, .bytes = granted_bytes_});
}

}  // namespace sluice::proto
