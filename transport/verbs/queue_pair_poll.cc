// What comes back from a queue pair. The device's own fields are checked too: byte_len and
// immediate data are the peer's, and of a failed completion only wr_id, status and
// vendor_err mean anything.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/verbs/queue_pair.h>

namespace sluice::verbs {
namespace {

constexpr const char* kOrigin = "verbs/queue_pair";
constexpr uint64_t kReceiveBit = uint64_t{1} << 63;

Counter completions_failed("verbs.completions_failed");
Counter frames_corrupt("verbs.frames_corrupt");
Counter peers_unplugged("verbs.peers_unplugged");
Counter access_refused_by_peer("verbs.access_refused_by_peer");
Counter moderation_changes("verbs.moderation_changes");

Code code_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_WR_FLUSH_ERR:
    case IBV_WC_REM_ABORT_ERR:
    // The peer's device cannot get at the peer's own queue or its memory. Of a process that is
    // killed, the memory may go before the queue pair.
    case IBV_WC_REM_OP_ERR: return Code::kUnreachable;
    case IBV_WC_REM_ACCESS_ERR: return Code::kAccessDenied;
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_BAD_RESP_ERR:
    case IBV_WC_REM_INV_REQ_ERR: return Code::kCorrupt;
    default: return Code::kInternal;
  }
}

Status corrupt(const std::string& what) {
  frames_corrupt.add();
  return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, what);
}

}  // namespace

size_t QueuePair::poll(proto::DirectClient& client, Instant now, int most) {
  if (stopped() || failed()) return 0;
  size_t work = 0;
  // From inside a completion the rest of its batch goes first: what was put aside came later.
  if ((!deferred_.empty() || !closed_at_once_.empty()) && batch_at_ == batch_size_) [[unlikely]]
    handle_put_aside(client, now, most, work);
  // What a batch that is not full leaves behind is of the next turn; arm() looks again, too.
  for (bool more = true; more && most > 0 && !stopped() && !failed();) {
    if (batch_at_ == batch_size_) take_batch(most);
    more = batch_size_ == batch_asked_;
    if (batch_size_ < 0)
      fail(Status(Code::kInternal, Scope::kEndpoint, kOrigin, "the completion queue has failed",
                  -batch_size_));
    if (batch_size_ <= 0) break;
    most -= batch_size_;
    device_.add_completions(batch_size_);
    work += static_cast<size_t>(batch_size_);
    while (batch_at_ < batch_size_ && !stopped() && !failed())
      handle(batch_[static_cast<size_t>(batch_at_++)], client, now);
    // A callback that waited for a window has put aside what came before the next batch.
    if (!deferred_.empty()) [[unlikely]]
      handle_deferred(client, now, most, work);
  }
  while (!to_invalidate_.empty() && !stopped() && !failed() && free_requests() > 0) {
    invalidate(to_invalidate_.back());
    to_invalidate_.pop_back();
    ++work;
  }
  if (!stopped() && !failed()) give_credits();
  if (!stopped() && !failed()) (void)flush();
  return work;
}

// They count, too: the next completion may not be the one that the caller asked for.
void QueuePair::handle_deferred(proto::DirectClient& client, Instant now, int& most, size_t& work) {
  while (most > 0 && !deferred_.empty() && !stopped() && !failed()) {
    ibv_wc completion = deferred_.front();
    deferred_.erase(deferred_.begin());
    handle(completion, client, now);
    --most;
    ++work;
  }
}

void QueuePair::handle_put_aside(proto::DirectClient& client, Instant now, int& most,
                                 size_t& work) {
  handle_deferred(client, now, most, work);
  while (!closed_at_once_.empty() && !stopped()) {
    uint64_t cookie = closed_at_once_.back();
    closed_at_once_.pop_back();
    client.on_window_closed(cookie, now);
    ++work;
  }
}

bool QueuePair::arm() {
  if (stopped() || failed()) return true;
  if (!flush().ok() || !deferred_.empty() || !closed_at_once_.empty()) return false;
  if (moderator_) adjust_moderation();
  if (int e = api_.req_notify_cq(cq_); e != 0) {
    fail(Status(Code::kInternal, Scope::kEndpoint, kOrigin, "the device gives no completion events",
                e));
    return false;
  }
  // What came before the request raises no event: look once more.
  ibv_wc completion{};
  int count = api_.poll_cq(cq_, 1, &completion);
  if (count > 0) deferred_.push_back(completion);
  return count == 0;
}

void QueuePair::adjust_moderation() {
  std::optional<Moderation> wanted =
      moderator_->before_sleep({device_.announced_to(user_), completions_, bytes_}, now());
  if (!wanted) return;
  if (device_.moderate(cq_, *wanted)) {
    moderation_changes.add();
  } else {
    moderator_.reset();
  }
}

void QueuePair::handle(const ibv_wc& completion, proto::DirectClient& client, Instant now) {
  ++completions_;
  if (completion.status != IBV_WC_SUCCESS) return account_flushed(completion);
  if ((completion.wr_id & kReceiveBit) != 0) return handle_received(completion, client, now);
  if (!is_posted(completion.wr_id)) {
    return fail(corrupt("the device completed request " + std::to_string(completion.wr_id) +
                        ", which is not posted"));
  }
  retire(completion.wr_id, &client, now);
}

// This request and all before it are over, except those that say so themselves.
void QueuePair::retire(uint64_t sequence, proto::DirectClient* client, Instant now) {
  // What is called may post, and then the places before tail_ are others'.
  for (uint64_t at = tail_; at <= sequence && !stopped(); at = std::max(at + 1, tail_)) {
    Record& place = record(at);
    if (place.over || (place.apart && at != sequence)) continue;
    const Kind kind = std::exchange(place.kind, Kind::kMessage);
    const WindowId window = place.window;
    const uint64_t cookie = place.cookie, length = place.length;
    ibv_mr* const temporary = std::exchange(place.temporary, nullptr);
    place.over = true;
    while (tail_ != head_ && record(tail_).over) ++tail_;
    if (temporary != nullptr) (void)api_.dereg_mr(temporary);
    if (kind == Kind::kMessage) ++send_tail_;
    if (kind == Kind::kInvalidate) windows_.give_back(window);
    if (client == nullptr) continue;
    if (kind == Kind::kMove) {
      bytes_ += length;
      client->on_moved(cookie, length, now);
    }
    if (kind == Kind::kInvalidate) client->on_window_closed(cookie, now);
  }
}

void QueuePair::handle_received(const ibv_wc& completion, proto::DirectClient& client,
                                Instant now) {
  uint64_t slot = completion.wr_id & ~kReceiveBit;
  if (slot >= kSlots || !posted_[slot]) {
    return fail(
        corrupt("the device completed receive " + std::to_string(slot) + ", which is not posted"));
  }
  posted_[slot] = false;
  --receives_out_;
  bytes_ += completion.byte_len;
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    client.on_notice(ntohl(completion.imm_data), now);
  } else if (completion.opcode != IBV_WC_RECV) {
    return fail(corrupt("a receive completed as opcode " + std::to_string(completion.opcode)));
  } else if (completion.byte_len < kFramePrefix || completion.byte_len > kSlotBytes) {
    return fail(corrupt("a frame of " + std::to_string(completion.byte_len) + " bytes"));
  } else {
    handle_frame(ConstBytes(slots_ + slot * kSlotBytes, completion.byte_len), client, now);
  }
  if (stopped() || failed()) return;
  used_[used_count_++] = static_cast<uint32_t>(slot);
  if (used_count_ < used_.size()) return;
  used_count_ = 0;
  if (Status posted = post_receives(used_); !posted.ok()) fail(posted);
}

void QueuePair::handle_frame(ConstBytes frame, proto::DirectClient& client, Instant now) {
  uint32_t prefix[2];
  std::memcpy(prefix, frame.data(), kFramePrefix);
  frame = frame.subspan(kFramePrefix);
  uint32_t more = prefix[0] - credit_limit_;
  // Limits only grow, and by no more than was used.
  if (more > kSlots || prefix[0] - credits_used_ > kSlots) {
    return fail(corrupt("a frame that gives " + std::to_string(more) + " receive slots"));
  }
  uint32_t notice = 0;
  bool noticed =
      prefix[1] == static_cast<uint32_t>(FrameKind::kNotice) && frame.size() == sizeof(notice);
  if (!noticed && prefix[1] != static_cast<uint32_t>(FrameKind::kMessage)) {
    return fail(corrupt("a frame of kind " + std::to_string(prefix[1]) + " with " +
                        std::to_string(frame.size()) + " bytes"));
  }
  credit_limit_ = prefix[0];
  if (noticed) {
    std::memcpy(&notice, frame.data(), sizeof(notice));
    client.on_notice(notice, now);
  } else if (!frame.empty()) {
    client.on_message(frame, now);
  }
}

// The first failure says what happened; those that follow are the queue being flushed.
void QueuePair::note_error(const ibv_wc& completion) {
  completions_failed.add();
  bool flush = completion.status == IBV_WC_WR_FLUSH_ERR;
  if (failed() && (flush || !failed_by_flush_)) return;
  failed_by_flush_ = flush;
  Code code = code_of(completion.status);
  std::string what;
  switch (completion.status) {
    case IBV_WC_RETRY_EXC_ERR:
      peers_unplugged.add();
      what =
          "the peer's device does not answer: gone, unplugged, or its link is down; "
          "check its machine and its link, then connect again";
      break;
    case IBV_WC_RNR_RETRY_EXC_ERR:
      what = "the peer has no receive posted although it gave credit";
      break;
    case IBV_WC_REM_ACCESS_ERR:
      access_refused_by_peer.add();
      what = "the peer's device refused access: outside the grant, revoked, or another's key";
      break;
    case IBV_WC_REM_OP_ERR:
      what =
          "the peer's device cannot reach the peer's own memory: its process has ended, or its "
          "queue is broken";
      break;
    case IBV_WC_WR_FLUSH_ERR:
      what = device_.limits().iwarp
                 ? "the peer ended the connection, or its device did because it refused an access"
                 : "the peer ended the connection";
      break;
    default:
      what = "the device reports: " + std::string(api_.status_text(completion.status));
      break;
  }
  what += " (status " + std::to_string(completion.status) + ", vendor " +
          std::to_string(completion.vendor_err) + ")";
  failure_ = {};
  failure_.why = Status(code, Scope::kEndpoint, kOrigin, what);
  uint64_t sequence = completion.wr_id;
  bool known = (sequence & kReceiveBit) == 0 && is_posted(sequence);
  if (!flush && known && record(sequence).kind == Kind::kMove) {
    failure_.moving = true;
    failure_.cookie = record(sequence).cookie;
    failure_.length = record(sequence).length;
  }
}

}  // namespace sluice::verbs
