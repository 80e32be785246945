#include <sluice/proto/send_queue.h>

#include <array>
#include <string>

#include <sluice/base/fault_point.h>
#include <sluice/proto/turn_budget.h>

#include "transport/proto/errors.h"

namespace sluice::proto {

Result<OperationId> SendQueue::post_send(Tag tag, std::span<const Tensor> segments,
                                         const PostOptions& options) {
  SLUICE_RETURN_IF_ERROR(connection_.check_connected());
  if (segments.empty() || segments.size() > wire::kMaxSegments) {
    return invalid("a message has 1 to 16 segments, not " + std::to_string(segments.size()));
  }
  OperationId at_once;
  bool nobody_waits = options.sink == nullptr && options.level == Level::kSourceReusable;
  if (nobody_waits && segments.size() == 1 && send_at_once(tag, segments[0], at_once))
    return at_once;
  SLUICE_TRY(Operation * op, operations_.take(OperationKind::kSend, options));
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

void SendQueue::start_or_queue(Operation* op) {
  bool in_turn = queued_.empty() || (waits_for_credit_ && op->kind != OperationKind::kSend);
  if (in_turn && start(op) != Started::kBlocked) return;
  op->state = OperationState::kQueued;
  queued_.push_back(op);
}

void SendQueue::run() {
  waits_for_credit_ = false;
  TurnBudget turn;
  for (Operation* op = queued_.first;
       op != nullptr && (connection_.state == EndpointState::kConnected || connection_.draining);) {
    Operation* next = op->next;
    bool behind_another = waits_for_credit_ && op->kind == OperationKind::kSend;
    if (!behind_another) {
      if (!turn.spend()) {
        waits_for_credit_ = false;  // may_start(): those behind have not had their turn
        return;
      }
      Started started = start(op);
      if (connection_.link_dead) return;
      if (started == Started::kBlocked) {
        bool by_credit = waits_for_credit_ && op->kind == OperationKind::kSend;
        if (!by_credit) return;  // no room for anybody
      } else if (op->list == &queued_) {
        queued_.remove(op);
      }
    }
    op = next;
  }
}

void SendQueue::allow(const wire::Credit& credit) {
  credits_.allow(credit);
  waits_for_credit_ = false;
  if (waiting()) connection_.activate();
}

void SendQueue::withdraw(const Operation& op) {
  // Count first, then tell. A peer copies only while it was told as many withdrawals as are
  // counted, and looks again when it is told of one: told too early, it would not look again.
  ++withdrawn_;
  if (!connection_.link_dead) transfer_.count_withdrawals(withdrawn_);
  control_.send(wire::Cancel{.id = op.id, .offer = true});
}

bool SendQueue::leaves_with_room(const Operation& op) const {
  bool waits_for_room = op.state == OperationState::kQueued && !waits_for_credit_;
  return waits_for_room && op.kind == OperationKind::kSend && op.level == Level::kSourceReusable &&
         op.total <= connection_.traits.inline_bytes && sends_host_memory(op);
}

// A message that is over once it is on its way spares the peer an answer if it goes eager. Without
// credit for its bytes it goes by rendezvous.
bool SendQueue::prefer_eager(uint64_t total) const {
  return total <= connection_.traits.most_inline_bytes && credits_.may_send_bytes(total) &&
         connection_.link.prefer_eager();
}

// A small message of one segment that nobody wants to hear of again, with room and credit
// for it: over before the call returns, without an operation. False: take the long way.
bool SendQueue::send_at_once(Tag tag, const Tensor& segment, OperationId& id) {
  if (waiting() || control_.blocked() || control_.waiting() || segment.in_device_memory())
    return false;
  ConstBytes payload = segment.bytes();
  uint64_t total = payload.size();
  if (!credits_.may_send(total)) return false;
  const LinkTraits& traits = connection_.traits;
  if (total > traits.inline_bytes && !prefer_eager(total)) return false;
  // Ids of such sends have slot 0, which no operation has.
  id = ++at_once_ << 32;
  std::byte header[wire::kTaggedInlineBytes];
  wire::encode(
      wire::TaggedInline{.id = id, .tag = tag, .payload_bytes = static_cast<uint32_t>(total)},
      header);
  if (!control_.send_now(header, std::span(&payload, 1))) return false;
  fault_point("session.offered");
  control_.flush_message();
  credits_.count_sent(total);
  EndpointCounters& counters = connection_.counters;
  ++counters.posted;
  ++counters.completed;
  ++counters.messages_sent;
  counters.bytes_sent += total;
  count_copies(counters, total, traits.inline_out);
  return true;
}

Started SendQueue::start(Operation* op) {
  switch (op->kind) {
    case OperationKind::kSend: return start_send(op);
    case OperationKind::kWrite: return start_write(op);
    default: return start_supply(op);
  }
}

Started SendQueue::start_send(Operation* op) {
  const bool over_when_sent = op->level == Level::kSourceReusable;
  const bool eager = sends_host_memory(*op) && (op->total <= connection_.traits.inline_bytes ||
                                                (over_when_sent && prefer_eager(op->total)));
  if (!credits_.may_send(eager ? op->total : 0)) {
    waits_for_credit_ = true;
    return Started::kBlocked;
  }
  wire::Offer message;
  message.id = op->id;
  message.about = wire::TaggedOffer{.tag = op->match.tag};
  message.total = op->total;
  if (eager) message.flags = wire::Offer::kInline | (over_when_sent ? 0 : wire::Offer::kReport);
  Started started = offer(op, message);
  if (started != Started::kSent) return started;
  credits_.count_sent(eager ? op->total : 0);
  if (!eager || !over_when_sent) return started;
  if (op->sink != nullptr) {
    operations_.complete_later(op, Status());
  } else {
    // Nobody is told, and the bytes are copied: it is over.
    ++connection_.counters.completed;
    operations_.release(op);
  }
  return started;
}

Started SendQueue::start_write(Operation* op) {
  wire::Offer message;
  message.id = op->id;
  message.about =
      wire::WriteOffer{.grant = op->grant, .epoch = op->grant_epoch, .offset = op->grant_offset};
  message.total = op->total;
  if (op->total <= connection_.traits.inline_bytes)
    message.flags = wire::Offer::kInline | wire::Offer::kReport;
  return offer(op, message);
}

Started SendQueue::start_supply(Operation* op) {
  wire::Offer message;
  message.id = op->id;
  message.total = op->total;
  if (op->internal) {
    message.about = wire::ReadOffer{.want = op->peer_id};
  } else {
    message.about = wire::SupplyOffer{.want = op->peer_id};
  }
  message.flags = transfer_.supply_flags(*op);
  fault_point("session.supply");
  Started started = offer(op, message);
  if (started == Started::kFailed)
    control_.send_done(op->peer_id, op->completion.status.code(),
                       0);  // the asker would wait for it
  return started;
}

// By number where the peer has it. It gets a number where the next offer of one segment can do with
// that alone.
void SendQueue::say_layout(const TensorDescriptor& layout, wire::Offer& offer) const {
  const bool by_number = offer.flags == 0 && offer.segment_count == 1 && layout.is_compact() &&
                         connection_.peer_can(wire::kFeatureLayoutNumbers);
  if (by_number) {
    offer.flags = wire::Offer::kNumbered;
    offer.layout_number = LayoutNumbers::number_of(layout);
    if (numbers_.has(offer.layout_number, layout)) return;
  }
  offer.has_layout = true;
  offer.layout = layout;
}

// Sends the offer of a started operation, with its payload if that rides along, else with what
// the path needs to get it.
Started SendQueue::offer(Operation* op, wire::Offer& offer) {
  std::array<ConstBytes, wire::kMaxSegments> payload;
  size_t pieces = 0;
  const bool inline_payload = (offer.flags & wire::Offer::kInline) != 0;
  if (inline_payload) {
    offer.payload_bytes = static_cast<uint32_t>(op->total);
    for (const Tensor& tensor : op->tensors) payload[pieces++] = tensor.bytes();
  } else {
    Started described = transfer_.describe(op, offer);
    if (described != Started::kSent) return described;
  }
  if (op->kind == OperationKind::kSupply && !op->internal)
    say_layout(op->tensors[0].descriptor(), offer);
  std::byte header[wire::kMaxHeaderBytes];
  size_t length = wire::encode(offer, header);
  if (!control_.send_now(ConstBytes(header, length), std::span(payload.data(), pieces)))
    return Started::kBlocked;
  fault_point("session.offered");
  op->state = OperationState::kOffered;
  if (offer.layout_number != 0 && offer.has_layout)
    numbers_.keep(offer.layout_number, offer.layout);
  control_.flush_message();
  EndpointCounters& counters = connection_.counters;
  ++counters.messages_sent;
  if (inline_payload) {
    op->moved = op->total;
    count_copies(op, counters, op->total, connection_.traits.inline_out);
    counters.bytes_sent += op->total;
    return Started::kSent;
  }
  if (offer.segment_count > 0) counters.bytes_sent += op->total;
  transfer_.offered(op, offer);
  return Started::kSent;
}

}  // namespace sluice::proto
