// What the coroutines of a path wait for, beside the rest of a context: a condition and a deadline.
// Knows no socket.
#ifndef SLUICE_RUNTIME_AWAITS_H_
#define SLUICE_RUNTIME_AWAITS_H_

#include <coroutine>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <sluice/api/progress_hook.h>
#include <sluice/base/clock.h>
#include <sluice/base/result.h>
#include <sluice/runtime/context_core.h>

namespace sluice {

// Of one owner in one context. Costs a turn of the context nothing while nobody waits. Thread: the
// context's.
class Awaits final : private ProgressHook {
 public:
  class Until;

  explicit Awaits(ContextCore& context) : context_(context) {}
  ~Awaits() { end_all(); }
  Awaits(const Awaits&) = delete;
  Awaits& operator=(const Awaits&) = delete;

  ContextCore& context() { return context_; }
  // co_await until(done, deadline): goes on once done() is true. It is asked in every turn of the
  // context. Errors: kTimedOut; kCancelled after end_all().
  Until until(std::function<bool()> done, Instant deadline);
  // All who wait go on with kCancelled, and so does who comes later.
  void end_all();
  bool empty() const { return waiting_.empty(); }
  // Errors: kCancelled after end_all().
  Status check() const { return ended_ ? status_of(Code::kCancelled) : Status(); }

 private:
  static Status status_of(Code code);
  size_t progress(Instant now) override;
  Instant next_timeout() override;
  void add(Until* until);
  void remove(Until* until);

  ContextCore& context_;
  std::vector<Until*> waiting_;
  bool ended_ = false;
};

class [[nodiscard]] Awaits::Until {
 public:
  Until(Awaits& awaits, std::function<bool()> done, Instant deadline)
      : awaits_(awaits), done_(std::move(done)), deadline_(deadline) {}
  ~Until() {
    if (waiter_) awaits_.remove(this);  // the coroutine is destroyed
  }
  Until(const Until&) = delete;
  Until& operator=(const Until&) = delete;

  bool await_ready() { return over(awaits_.context_.now()); }
  void await_suspend(std::coroutine_handle<> waiter) {
    waiter_ = waiter;
    awaits_.add(this);
  }
  Status await_resume() const;

 private:
  friend class Awaits;
  bool over(Instant now);

  Awaits& awaits_;
  std::function<bool()> done_;
  Instant deadline_;
  std::coroutine_handle<> waiter_;  // null: does not wait
  Code code_ = Code::kOk;
};

}  // namespace sluice

// As SLUICE_RETURN_IF_ERROR and SLUICE_TRY, in a coroutine.
#define SLUICE_CO_RETURN_IF_ERROR(expression)                 \
  do {                                                        \
    auto&& sluice_status = (expression);                      \
    if (!sluice_status.ok()) [[unlikely]]                     \
      co_return ::sluice::internal::status_of(sluice_status); \
  } while (false)
#define SLUICE_CO_TRY(declaration, ...) \
  SLUICE_CO_TRY_NAMED(SLUICE_CONCAT(sluice_result_, __COUNTER__), declaration, __VA_ARGS__)
#define SLUICE_CO_TRY_NAMED(name, declaration, ...) \
  auto name = (__VA_ARGS__);                        \
  if (!name.ok()) [[unlikely]]                      \
    co_return name.status();                        \
  declaration = std::move(name).value()

#endif  // SLUICE_RUNTIME_AWAITS_H_
