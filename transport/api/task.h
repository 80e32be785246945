// A coroutine that waits for sluice's operations: `co_await` anything with ready(),
// take() and a waiter, and run it with Context::run_until(task).
#ifndef SLUICE_API_TASK_H_
#define SLUICE_API_TASK_H_

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

namespace sluice {

// Starts at once, runs on the context's thread, resumes inside Context::progress().
// Ownership: destroying an unfinished Task destroys its coroutine, which cancels what
// it was waiting for. An exception that leaves the coroutine ends the process: sluice
// has none of its own.
template <typename T>
class [[nodiscard]] Task {
 public:
  struct promise_type {
    Task get_return_object() {
      return Task(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_never initial_suspend() noexcept { return {}; }
    struct Final {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> self) noexcept {
        return self.promise().waiter ? self.promise().waiter : std::noop_coroutine();
      }
      void await_resume() noexcept {}
    };
    Final final_suspend() noexcept { return {}; }
    template <typename U>
    void return_value(U&& value) {
      result.emplace(std::forward<U>(value));
    }
    void unhandled_exception() noexcept { std::terminate(); }

    std::optional<T> result;
    std::coroutine_handle<> waiter;
  };

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  bool ready() const { return handle_.done(); }
  // Requires: ready(); once.
  T take() { return std::move(*handle_.promise().result); }

  bool await_ready() const noexcept { return ready(); }
  void await_suspend(std::coroutine_handle<> waiter) noexcept { handle_.promise().waiter = waiter; }
  T await_resume() { return take(); }

 private:
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace sluice

#endif  // SLUICE_API_TASK_H_
