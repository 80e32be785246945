#include <sluice/runtime/awaits.h>

#include <algorithm>

namespace sluice {

Awaits::Until Awaits::until(std::function<bool()> done, Instant deadline) {
  return Until(*this, std::move(done), deadline);
}

bool Awaits::Until::over(Instant now) {
  if (awaits_.ended_) {
    code_ = Code::kCancelled;
    return true;
  }
  if (done_()) return true;
  if (now < deadline_) return false;
  code_ = Code::kTimedOut;
  return true;
}

Status Awaits::Until::await_resume() const {
  if (code_ == Code::kOk) return Status();
  return Status(code_, Scope::kOperation, "runtime/awaits",
                code_ == Code::kTimedOut ? "it did not happen before the deadline"
                                         : "the context was closed");
}

void Awaits::add(Until* until) {
  if (waiting_.empty()) context_.add_hook(this);
  waiting_.push_back(until);
}

void Awaits::remove(Until* until) {
  until->waiter_ = nullptr;
  std::erase(waiting_, until);
  if (waiting_.empty()) context_.remove_hook(this);
}

// Whoever goes on may start, end and destroy others, and may progress the context: after each the
// list is read anew. A turn inside a turn does nothing here.
size_t Awaits::progress(Instant now) {
  if (in_turn_) return 0;
  in_turn_ = true;
  size_t work = 0;
  for (size_t i = 0; i < waiting_.size();) {
    Until* until = waiting_[i];
    if (!until->over(now)) {
      ++i;
      continue;
    }
    const std::coroutine_handle<> waiter = until->waiter_;
    remove(until);
    waiter.resume();
    ++work;
  }
  in_turn_ = false;
  return work;
}

Instant Awaits::next_timeout() {
  Instant next = kNever;
  for (const Until* until : waiting_) next = std::min(next, until->deadline_);
  return next;
}

void Awaits::end_all() {
  ended_ = true;
  while (!waiting_.empty()) {
    Until* until = waiting_.back();
    const std::coroutine_handle<> waiter = until->waiter_;
    until->code_ = Code::kCancelled;
    remove(until);
    waiter.resume();
  }
}

}  // namespace sluice
