// What arrives here was chosen by the peer.
#include <sluice/proto/matching.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include <sluice/allocator/device_storage.h>
#include <sluice/base/counters.h>

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

Counter credit_overrun("session.credit_overrun");
Counter credit_widened("session.credit_widened");

Status beyond_credit() {
  credit_overrun.add();
  return corrupt("the peer sent more than it was given credit for");
}

uint64_t capacity_of(const Operation* op) {
  uint64_t capacity = 0;
  for (const Buffer& buffer : op->completion.buffers) capacity += buffer.size_bytes();
  return capacity;
}

Status too_small(uint64_t total, uint64_t capacity) {
  return invalid("the message has " + std::to_string(total) + " bytes, the buffers hold " +
                 std::to_string(capacity) + "; post a larger receive, the message is kept");
}

}  // namespace

Matching::Matching(Connection& connection, Operations& operations, ControlQueue& control,
                   Credits& credits, Incoming& incoming, uint64_t secret)
    : connection_(connection),
      operations_(operations),
      control_(control),
      credits_(credits),
      incoming_(incoming),
      offers_(secret) {}

Result<OperationId> Matching::post_receive(TagMatch match, std::span<Buffer> segments,
                                           const PostOptions& options) {
  UnexpectedQueue::Iterator found = unexpected_.begin();
  while (found != unexpected_.end() && !match.matches(found->tag)) ++found;
  // A message that has come wholly before the close can still be received.
  bool leftover = found != unexpected_.end() && found->is_inline;
  if (!leftover) SLUICE_RETURN_IF_ERROR(connection_.check_connected());
  if (segments.empty() || segments.size() > wire::kMaxSegments) {
    return invalid("a receive has 1 to 16 buffers, not " + std::to_string(segments.size()));
  }
  SLUICE_TRY(Operation * op, operations_.take(OperationKind::kReceive, options));
  op->match = match;
  for (Buffer& buffer : segments) op->completion.buffers.emplace_back(std::move(buffer));
  OperationId id = op->id;
  if (found == unexpected_.end()) {
    posted_.push_back(op);
    return id;
  }
  if (found->total > capacity_of(op)) {
    operations_.complete_later(op, too_small(found->total, capacity_of(op)));
    return id;
  }
  Status status = take_unexpected(op, found);
  if (!status.ok()) connection_.fail(status);
  return id;
}

// The first posted receive that takes the message. Ones that match but are too small
// end, untouched, with the next delivery: a callback here could post more of them, and
// the message would miss the receive that fits.
Operation* Matching::match_posted(Tag tag, uint64_t total) {
  Operation* next;
  for (Operation* op = posted_.first; op != nullptr; op = next) {
    next = op->next;
    if (!op->match.matches(tag)) continue;
    uint64_t capacity = capacity_of(op);
    if (capacity >= total) [[likely]]
      return op;
    op->match.tag = tag;
    operations_.complete_later(op, too_small(total, capacity));
  }
  return nullptr;
}

bool Matching::take_credit(uint64_t eager_bytes) {
  if (!connection_.traits.credit_grows) return credits_.take(eager_bytes);
  const bool allowed = credits_.take(eager_bytes, connection_.last_heard);
  if (credits_.wanted()) [[unlikely]]
    widen_credit();
  return allowed;
}

// Credit is a promise to keep what it allows. So it is charged when it is given: what comes by it
// never ends a connection for want of room.
void Matching::widen_credit() {
  Credits::Growth growth = credits_.wanted();
  const uint64_t cost = growth.bytes + growth.messages * kUnexpectedRecordBytes;
  const bool widens = connection_.account->charge_spare(PeerResource::kUnexpectedBytes, cost);
  credits_.widen(widens ? growth : Credits::Growth());
  if (!widens) return;
  widened_ += cost;
  credit_widened.add();
}

Status Matching::on_message(const wire::TaggedInline& message, PayloadReader& payload) {
  const uint64_t total = message.payload_bytes;
  if (!take_credit(total)) [[unlikely]]
    return beyond_credit();
  Operation* op = match_posted(message.tag, total);
  if (op == nullptr) return store(message, payload);
  op->match.tag = message.tag;
  op->total = total;
  op->completion.receipt.bytes = total;
  Status placed = incoming_.read_inline(op, payload, total);
  consumed(total);
  if (message.report) control_.send_done(message.id, placed.code(), total);
  operations_.complete(op, std::move(placed));
  return Status();
}

Status Matching::on_offer(const wire::Offer& offer, PayloadReader& payload) {
  const wire::Tag tag = offer.about.tagged().tag;
  if ((offer.flags & wire::Offer::kInline) != 0) {
    // One with TLVs that are skipped.
    wire::TaggedInline message{.id = offer.id, .tag = tag, .payload_bytes = offer.payload_bytes};
    message.report = (offer.flags & wire::Offer::kReport) != 0;
    return on_message(message, payload);
  }
  if (!take_credit(0)) return beyond_credit();
  std::span<const wire::Segment> segments(offer.segments.data(), offer.segment_count);
  Operation* op = match_posted(tag, offer.total);
  if (op == nullptr) {
    SLUICE_TRY(Unexpected * message, store(offer.id, tag, offer.total, 0));
    message->segment_count = offer.segment_count;
    std::copy(segments.begin(), segments.end(), message->segments.begin());
    offers_.insert(message, offer.id);
    return Status();
  }
  op->match.tag = tag;
  op->completion.receipt.bytes = offer.total;
  consumed(0);
  // If the CREDIT had no room, the connection has failed and `op` has ended.
  if (connection_.over()) return Status();
  return incoming_.fetch(op, offer.id, segments, offer.total);
}

bool Matching::withdraw(uint64_t offer_id) {
  Unexpected* message = offers_.find(offer_id);
  if (message == nullptr) return false;
  drop(message->place);
  consumed(0);
  control_.send_done(offer_id, Code::kCancelled, 0);
  return true;
}

Status Matching::take_unexpected(Operation* op, UnexpectedQueue::Iterator message) {
  op->match.tag = message->tag;
  op->peer_id = message->offer_id;
  op->total = message->total;
  op->completion.receipt.bytes = message->total;
  if (!message->is_inline) {
    std::array<wire::Segment, wire::kMaxSegments> segments = message->segments;
    uint32_t count = message->segment_count;
    drop(message);
    consumed(0);
    if (connection_.over()) return Status();
    return incoming_.fetch(op, op->peer_id, std::span(segments.data(), count), op->total);
  }
  ConstBytes left = message->total > 0 ? ConstBytes(message->payload.bytes()).first(message->total)
                                       : ConstBytes();
  Status placed;
  for (Buffer& buffer : op->completion.buffers) {
    size_t take = std::min(left.size(), buffer.size_bytes());
    if (buffer.in_device_memory()) [[unlikely]] {
      if (Status ended = copy_from_host(buffer, left.first(take)); !ended.ok()) placed = ended;
    } else if (take > 0) {
      std::memcpy(buffer.data(), left.data(), take);
    }
    left = left.subspan(take);
  }
  // Into the queue, and out of it again.
  const CopyCost& cost = connection_.traits.inline_in;
  op->completion.receipt.copied_bytes += op->total * (uint64_t{cost.user} + 1);
  op->completion.receipt.kernel_copied_bytes += op->total * cost.kernel;
  connection_.counters.copied_bytes += op->total;
  connection_.counters.bytes_received += op->total;
  bool report = message->report;
  drop(message);
  consumed(op->total);
  if (report) control_.send_done(op->peer_id, placed.code(), op->total);
  operations_.complete_later(op, std::move(placed));
  return Status();
}

// `kept`: bytes of it that lie in our arena.
Result<Unexpected*> Matching::store(uint64_t offer_id, Tag tag, uint64_t total, uint64_t kept) {
  SLUICE_RETURN_IF_ERROR(keep(kept + kUnexpectedRecordBytes));
  Unexpected& message = unexpected_.push_back();
  message.offer_id = offer_id;
  message.tag = tag;
  message.total = total;
  message.is_inline = message.report = false;
  message.kept = kept + kUnexpectedRecordBytes;
  message.segment_count = 0;
  return &message;
}

Status Matching::store(const wire::TaggedInline& inlined, PayloadReader& payload) {
  uint64_t total = inlined.payload_bytes;
  Buffer bytes;
  if (total > 0) {
    // Before it is queued: a message without its bytes must not be received later.
    Result<Buffer> room = connection_.arena->allocate(total, {.for_receive = true});
    if (!room.ok()) {
      return Status(room.code(), Scope::kEndpoint, kOrigin,
                    "no memory for a message that no receive was posted for: " +
                        std::string(room.status().detail()));
    }
    bytes = std::move(room).value();
  }
  SLUICE_TRY(Unexpected * message, store(inlined.id, inlined.tag, total, total));
  if (total > 0) {
    payload.read(bytes.bytes());
    count_copies(connection_.counters, total, connection_.traits.inline_in);
  }
  message->is_inline = true;
  message->report = inlined.report;
  message->payload = std::move(bytes);
  return Status();
}

void Matching::drop(UnexpectedQueue::Iterator message) {
  let_go(message->kept);
  offers_.remove(&*message);
  unexpected_.erase(message);
}

void Matching::drop_offers() {
  // Nothing more comes: of the credit that was promised, only what it brought is still kept.
  const uint64_t unused = widened_ - std::min(widened_, kept_);
  connection_.account->refund(PeerResource::kUnexpectedBytes, unused);
  widened_ -= unused;
  for (auto message = unexpected_.begin(); message != unexpected_.end();) {
    auto here = message++;
    if (!here->is_inline) drop(here);
  }
}

void Matching::clear() {
  let_go(kept_);
  connection_.account->refund(PeerResource::kUnexpectedBytes, std::exchange(widened_, 0));
  offers_.clear();
  unexpected_.clear();
}

Status Matching::keep(uint64_t bytes) {
  const uint64_t kept = kept_ + bytes, own = kOwnUnexpectedBytes + widened_;
  const uint64_t due = kept > own ? kept - own : 0;
  if (due > charged_) {
    Status charged = connection_.account->charge(PeerResource::kUnexpectedBytes, due - charged_);
    if (!charged.ok())
      return Status(Code::kNoMemory, Scope::kEndpoint, kOrigin, std::string(charged.detail()));
    charged_ = due;
  }
  kept_ = kept;
  return Status();
}

void Matching::let_go(uint64_t bytes) {
  kept_ -= bytes;
  const uint64_t own = kOwnUnexpectedBytes + widened_;
  const uint64_t due = kept_ > own ? kept_ - own : 0;
  if (due == charged_) return;
  connection_.account->refund(PeerResource::kUnexpectedBytes, charged_ - due);
  charged_ = due;
}

}  // namespace sluice::proto
