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

Status Awaits::status_of(Code code) {
  if (code == Code::kOk) return Status();
  return Status(code, Scope::kOperation, "runtime/awaits",
                code == Code::kTimedOut
                    ? "what was waited for did not happen before the deadline; wait longer, or "
                      "check what was to bring it about"
                    : "the context was closed");
}

Status Awaits::Until::await_resume() const { return status_of(code_); }

void Awaits::add(Until* until) {
  if (waiting_.empty()) context_.add_hook(this);
  waiting_.push_back(until);
}

void Awaits::remove(Until* until) {
  until->waiter_ = nullptr;
  std::erase(waiting_, until);
  if (waiting_.empty()) context_.remove_hook(this);
}

// Whoever goes on may start, end and destroy others, and may wait inside for something else, which
// comes here again: after each the list is read anew. Who is missed by that has its turn in the
// next one.
size_t Awaits::progress(Instant now) {
  size_t work = 0;
  const size_t most = waiting_.size();
  for (size_t i = 0; i < waiting_.size() && work < most;) {
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
