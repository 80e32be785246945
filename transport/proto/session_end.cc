// Closing, failing, deadlines and silence: how operations and the connection end.
#include <sluice/proto/session.h>

#include <algorithm>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/proto/timed_out.h>

#include "transport/proto/errors.h"

namespace sluice::proto {
namespace {

Counter ended_by_deadline("session.ended_by_deadline");
Counter peers_silent("session.peers_silent");
Counter idle_closed("session.idle_closed");

// A host that comes this long after the time it was told was not looking: silence of
// the peer in that time proves nothing.
constexpr Duration kLatePoll = std::chrono::milliseconds(500);

}  // namespace

void Session::start_close() {
  if (state_ == EndpointState::kClosed) discard_leftovers();
  if (state_ != EndpointState::kConnected) return;
  fault_point("session.close");
  run_queue();
  state_ = EndpointState::kClosing;
  bye_due_ = true;
  table_.for_each([&](Operation& op) {
    bool over =
        op.internal || op.state == OperationState::kReady || op.state == OperationState::kZombie;
    if (!over && !leaves_before_bye(op)) end_early(&op, closing_status());
  });
  send_releases();
  send_bye_in_turn();
  host_->activate(*this);
}

// A message that is over once it is on its way, and that only a full link holds up.
bool Session::leaves_before_bye(const Operation& op) const {
  bool waits_for_room = op.state == OperationState::kQueued && !credit_blocked_;
  return waits_for_room && op.kind == OperationKind::kSend && op.level == Level::kSourceReusable &&
         op.total <= traits_.inline_bytes;
}

// The peer reads nothing after our BYE: what was sent before the close goes first.
void Session::send_bye_in_turn() {
  bool waiting = false;
  table_.for_each([&](Operation& op) {
    if (op.internal || op.state != OperationState::kQueued) return;
    if (credit_blocked_) return end_early(&op, closing_status());
    waiting = true;
  });
  if (waiting || link_dead_) return;
  bye_due_ = false;
  bye_sent_ = true;
  send_control(wire::Bye{.code = farewell_});
}

void Session::abort(const Status& why) {
  if (state_ == EndpointState::kClosed) discard_leftovers();
  if (state_ == EndpointState::kClosed || link_dead_) return;
  fail_connection(why);
  // The peer must not wait for our next progress(), which may never come; but a link that
  // is calling us, or is being called, is let go by that.
  if (depth_ == 0) drop_link();
}

// An orderly close, so that the peer has read why before the path goes; but it is not waited for
// as long as one that we took.
void Session::turn_away(const Status& why, bool patient) {
  if (state_ != EndpointState::kConnected || link_dead_) return;
  close_reason_ = why;
  farewell_ = why.code();
  if (!patient) {
    bye_sent_ = true;
    send_control(wire::Bye{.code = farewell_});
    if (!link_dead_) link_->flush();
    return abort(why);
  }
  farewell_ends_ = after(host_->exact_now(), kFarewellTime);
  arm_timeout(farewell_ends_);
  start_close();
}

// Loans go to the link, which knows when the peer cannot read any more.
void Session::drop_link() {
  if (link_dropped_) return;
  link_dropped_ = true;
  table_.for_each([&](Operation& op) {
    if (!op.loaned) return;
    for (Tensor& tensor : op.tensors) link_->quarantine(tensor.storage());
  });
  if (!link_dead_) link_->flush();
  link_->close();
  ticket_.end();
}

// The program has no handle any more, or no use for what came before the end. After
// detach() there is none, nor a host.
void Session::discard_leftovers() {
  if (unexpected_.empty()) return;
  clear_unexpected();
  host_->activate(*this);
}

// The connection is of no use any more; what is outstanding ends at the next progress.
void Session::fail_connection(const Status& why) {
  if (link_dead_) return;
  link_dead_ = true;
  if (close_reason_.ok()) close_reason_ = why;
  if (state_ == EndpointState::kConnected) state_ = EndpointState::kClosing;
  // Before anybody gets memory back.
  if (!transfer_->stop()) quarantine_reachable();
  fail_all(why);
  host_->activate(*this);
}

// The program gets its memory back as always, but when it lets go of it, nobody else has it.
void Session::quarantine_reachable() {
  table_.for_each([&](Operation& op) {
    if (!transfer_->may_be_reached(op)) return;
    for (Tensor& tensor : op.tensors) link_->quarantine(tensor.storage());
    for (Buffer& buffer : op.completion.buffers) link_->quarantine(buffer.storage());
  });
  grants_.for_each([&](uint64_t, const Grant& grant) { link_->quarantine(grant.storage); });
}

void Session::fail_all(const Status& why) {
  table_.for_each([&](Operation& op) {
    if (op.state == OperationState::kReady || op.state == OperationState::kZombie) return;
    if (link_dead_) transfer_->link_stopped(&op);
    if (op.state == OperationState::kFencing) {
      if (!link_dead_) return;
      Status decided = std::move(op.completion.status);
      return complete_later(&op, std::move(decided));
    }
    if (op.internal) {
      if (op.loaned || op.in_flight > 0) {
        unlink(&op);
        op.state = OperationState::kZombie;
      } else {
        release_operation(&op);
      }
      return;
    }
    if (op.answered) return complete_later(&op, Status());
    bool sending = op.kind == OperationKind::kSend || op.kind == OperationKind::kWrite;
    bool told = op.state == OperationState::kOffered || op.state == OperationState::kPushing;
    Status end = why;
    if (sending && told) {
      end = Status(Code::kOutcomeUnknown, Scope::kEndpoint, kOrigin,
                   "the connection ended before the peer answered: " + why.to_string());
    }
    if (!link_dead_ && transfer_->fence_early(&op, end, false)) return;
    complete_later(&op, std::move(end));
  });
}

bool Session::ready_to_finish() const {
  if (finished_ || !ready_.empty()) return false;
  return link_dead_ || (bye_sent_ && bye_received_ && backlog_start_ == backlog_.size() &&
                        transfer_->all_fenced());
}

void Session::finish_close() {
  finished_ = true;
  state_ = EndpointState::kClosed;
  if (close_reason_.ok())
    close_reason_ =
        Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, "the connection was closed");
  drop_link();
  // What lingered was only waiting for the link to let go.
  table_.for_each([&](Operation& op) { release_operation(&op); });
  grants_.clear();
  for (auto message = unexpected_.begin(); message != unexpected_.end();) {
    auto here = message++;
    if (!here->is_inline) drop_unexpected(here);  // its bytes are out of reach
  }
  early_wants_.clear();
  while (wants_waiting_ > 0) end_want();
  account_->refund(PeerResource::kControlBytes, std::exchange(control_charged_, 0));
  transfer_->clear();
  if (WantHandler* handler = std::exchange(want_handler_, nullptr))
    handler->on_endpoint_closed(*this, close_reason_);
}

bool Session::has_work() const {
  if (!ready_.empty() || ready_to_finish()) return true;
  if (link_dead_ || finished_) return false;
  if (releases_.count > 0 || needs_flush_) return true;
  if (transfer_->moving() && transfer_->has_work()) return true;
  if (blocked_) return false;
  bool may_start =
      !queued_.empty() && !credit_blocked_ && !offers_held_ && state_ == EndpointState::kConnected;
  if (bye_due_) return true;
  return may_start || backlog_start_ < backlog_.size();
}

bool Session::has_unsent() const {
  if (link_dead_ || finished_) return false;
  bool may_start = !queued_.empty() && !credit_blocked_ && !offers_held_;
  return backlog_start_ < backlog_.size() || releases_.count > 0 || needs_flush_ || may_start ||
         link_->has_unsent();
}

size_t Session::progress(Instant now) {
  Busy busy(*this);
  size_t work = deliver_ready();
  if (std::exchange(silence_news_, false)) ++work;
  if (!link_dead_ && !finished_) {
    if (!blocked_ && flush_backlog() && !queued_.empty() && !offers_held_) run_queue();
    if (bye_due_ && !link_dead_) send_bye_in_turn();
    if (transfer_->moving()) work += transfer_->progress();
    // A round without other work sends what was held back to travel together.
    if (releases_.count > 0 && (work == 0 || releases_.count >= 8)) send_releases();
    if (needs_flush_) {
      needs_flush_ = false;
      link_->flush();
    }
  }
  if (ready_to_finish()) {
    finish_close();
    ++work;
  }
  return work;
}

void Session::handle_timeout(Instant now) {
  Busy busy(*this);
  // What ends below may arm a later time, for its fence: that counts like the others.
  next_timeout_ = kNever;
  if (finished_) return;
  Instant next = kNever;
  bool waiting = false;
  table_.for_each([&](Operation& op) {
    if (op.internal || op.state == OperationState::kReady || op.state == OperationState::kZombie)
      return;
    if (op.state == OperationState::kFencing) {
      if (op.deadline <= now) transfer_->fence_overdue(&op, now);
      if (op.state == OperationState::kFencing) next = std::min(next, op.deadline);
      return;
    }
    if (op.deadline <= now) {
      ended_by_deadline.add();
      end_early(&op, timed_out(op, unexpected_, silent_ && last_heard_ < ping_sent_));
      return;
    }
    waiting = true;
    next = std::min(next, op.deadline);
  });
  if (farewell_ends_ <= now && !link_dead_) fail_connection(close_reason_);
  if (!link_dead_) next = std::min(next, farewell_ends_);
  silence_due_ = waiting && !link_dead_ ? check_silence(now) : kNever;
  next = std::min(next, silence_due_);
  next = std::min(next, transfer_->expire_grants(now));
  if (options_.idle_limit > Duration(0) && !link_dead_) next = std::min(next, check_idle(now));
  next_timeout_ = std::min(next_timeout_, next);
}

// Asks a peer that says nothing whether it makes progress. Returns when to look again.
Instant Session::check_silence(Instant now) {
  if (silence_due_ != kNever && now - silence_due_ > kLatePoll) {
    last_heard_ = std::max(last_heard_, now - options_.ping_interval);
    if (ping_out_) ping_sent_ = now;
  }
  if (ping_out_ && last_heard_ >= ping_sent_) ping_out_ = false;
  if (!ping_out_) {
    if (silent_) silent_ = false;
    if (now - last_heard_ < options_.ping_interval) return last_heard_ + options_.ping_interval;
    ping_out_ = true;
    ping_sent_ = now;
    ++pings_;
    send_control(wire::Ping{.nonce = ++ping_nonce_});
    return now + options_.silent_after;
  }
  Duration quiet = now - ping_sent_;
  if (quiet < options_.silent_after) return ping_sent_ + options_.silent_after;
  if (!silent_) {
    silent_ = silence_news_ = true;
    peers_silent.add();
    host_->activate(*this);
  }
  if (options_.silence_limit > Duration(0) && quiet >= options_.silence_limit) {
    fail_connection(Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                           "the peer has not called progress for longer than the silence limit"));
    return kNever;
  }
  Instant limit =
      options_.silence_limit > Duration(0) ? ping_sent_ + options_.silence_limit : kNever;
  return std::min(limit, now + options_.silent_after);
}

// Closes a connection that neither end has used since the last look. Returns when to look again.
Instant Session::check_idle(Instant now) {
  if (now < idle_due_) return idle_due_;
  const uint64_t uses =
      counters_.messages_sent + counters_.messages_received + counters_.posted - pings_;
  const bool used = uses != std::exchange(idle_mark_, uses);
  if (!used && table_.used() == 0 && views_->outstanding() == 0) {
    idle_closed.add();
    fail_connection(Status(Code::kTimedOut, Scope::kEndpoint, kOrigin,
                           "nobody used the connection for ListenOptions::idle_limit; connect "
                           "again when there is work"));
    return kNever;
  }
  return idle_due_ = after(now, options_.idle_limit);
}

EndpointInfo Session::info() const {
  EndpointInfo info;
  info.path = traits_.properties;
  info.bulk_path = transfer_->bulk_path();
  info.local = link_->local_name();
  info.peer = link_->peer_name();
  info.reason = reason_;
  info.peer_incarnation = peer_.incarnation;
  info.peer_pid = peer_.host == ours_.host ? peer_.pid : 0;
  info.peer_tells_latest = (peer_.features & wire::kFeatureLatest) != 0;
  info.peer_silent =
      silent_ && last_heard_ < ping_sent_;  // heard since, and the timer not yet there
  return info;
}

EndpointCounters Session::counters() const {
  EndpointCounters counters = counters_;
  counters.views_outstanding = views_->outstanding();
  auto& table = const_cast<OperationTable&>(table_);
  table.for_each([&](Operation& op) { counters.loans_outstanding += op.loaned ? 1 : 0; });
  return counters;
}

}  // namespace sluice::proto
