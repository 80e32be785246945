// Allocating without blocking: an operation like any other, polled, awaited or driven by Asio.
#ifndef SLUICE_API_ALLOCATING_H_
#define SLUICE_API_ALLOCATING_H_

#include <coroutine>
#include <optional>
#include <span>
#include <utility>

#include <sluice/api/context.h>
#include <sluice/api/task.h>

namespace sluice {

// Memory in the making. Goes on in Context::progress(), by 2 ms in each turn that has nothing else
// to do, so that peers are answered meanwhile. Dropping it gives up, and its memory goes back in
// later turns; what is left when the context ends, at once. Thread: the context's.
class [[nodiscard]] Allocating {
 public:
  explicit Allocating(Task<Result<Buffer>> task) : task_(std::move(task)) {}
  Allocating(Allocating&&) noexcept = default;
  Allocating& operator=(Allocating&&) noexcept = default;

  bool ready() const { return ended_.has_value() || task_->ready(); }
  // Requires: ready(); once. Errors: as Arena::allocate(); kCancelled, also when the context was
  // closed meanwhile.
  Result<Buffer> take() { return ended_ ? std::move(*ended_) : task_->take(); }
  // Ends it now, with kCancelled, unless it has ended.
  void cancel() {
    if (ready()) return;
    task_.reset();
    ended_.emplace(Status(Code::kCancelled, Scope::kOperation, "api/allocating",
                          "allocating was cancelled by the caller"));
    if (waiter_) std::exchange(waiter_, nullptr).resume();
  }

  bool await_ready() const noexcept { return ready(); }
  void await_suspend(std::coroutine_handle<> waiter) noexcept {
    waiter_ = waiter;
    task_->await_suspend(waiter);
  }
  Result<Buffer> await_resume() { return take(); }

 private:
  std::optional<Task<Result<Buffer>>> task_;  // empty: cancelled
  std::optional<Result<Buffer>> ended_;       // by cancel()
  std::coroutine_handle<> waiter_;
};

// As context.arena().allocate(), without waiting for the kernel to zero the pages: a step is one
// slice of 2 MiB (docs/performance.md, "Pages"). Where the context has RDMA devices, a device
// registers an extent in one step, which takes the longer the larger it is.
Allocating start_allocate(Context& context, size_t bytes, const AllocateOptions& options = {});
// As context.allocate(). Errors: kInvalidArgument (bad shape).
Allocating start_allocate(Context& context, std::span<const int64_t> shape, DataType dtype,
                          const AllocateOptions& options = {});
// As context.arena().trim(): whole free extents go back to the system in later turns. The last step
// of an extent frees its pages at once, as Arena::free_some() says. Returns their bytes; 0 also
// while another thread grows the arena.
size_t start_trim(Context& context);

}  // namespace sluice

#endif  // SLUICE_API_ALLOCATING_H_
