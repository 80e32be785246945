// Connecting without blocking: an operation like any other, polled, awaited or driven by Asio.
#ifndef SLUICE_API_CONNECTING_H_
#define SLUICE_API_CONNECTING_H_

#include <coroutine>
#include <optional>
#include <string>
#include <utility>

#include <sluice/api/context.h>
#include <sluice/api/task.h>

namespace sluice {

// A connection in the making. Goes on in Context::progress(); ends once, at options.timeout at the
// latest. Dropping it gives up. Thread: the context's.
class [[nodiscard]] Connecting {
 public:
  explicit Connecting(Task<Result<Endpoint>> task) : task_(std::move(task)) {}
  Connecting(Connecting&&) noexcept = default;
  Connecting& operator=(Connecting&&) noexcept = default;

  bool ready() const { return ended_.has_value() || task_->ready(); }
  // Requires: ready(); once. Errors: as Context::connect(); kCancelled, also when the context was
  // closed meanwhile.
  Result<Endpoint> take() { return ended_ ? std::move(*ended_) : task_->take(); }
  // Ends it now, with kCancelled, unless it has ended.
  void cancel() {
    if (ready()) return;
    task_.reset();
    ended_.emplace(Status(Code::kCancelled, Scope::kOperation, "api/connecting",
                          "connecting was cancelled by the caller"));
    if (waiter_) std::exchange(waiter_, nullptr).resume();
  }

  bool await_ready() const noexcept { return ready(); }
  void await_suspend(std::coroutine_handle<> waiter) noexcept {
    waiter_ = waiter;
    task_->await_suspend(waiter);
  }
  Result<Endpoint> await_resume() { return take(); }

 private:
  std::optional<Task<Result<Endpoint>>> task_;  // empty: cancelled
  std::optional<Result<Endpoint>> ended_;       // by cancel()
  std::coroutine_handle<> waiter_;
};

// As context.connect(), without waiting: the name is resolved, the peer called and greeted while
// the context is progressed.
Connecting start_connect(Context& context, const std::string& address);
Connecting start_connect(Context& context, const std::string& address,
                         const ConnectOptions& options);
// Options need a name of their own: gcc 12 destroys a temporary of a co_await wrongly.
Connecting start_connect(Context& context, const std::string& address,
                         ConnectOptions&& options) = delete;

}  // namespace sluice

#endif  // SLUICE_API_CONNECTING_H_
