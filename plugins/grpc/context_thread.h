// A context and the thread that progresses it, behind a channel or a listener. Runs what other
// threads post to it, in order.
#ifndef SLUICE_GRPC_CONTEXT_THREAD_H_
#define SLUICE_GRPC_CONTEXT_THREAD_H_

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include <sluice/api/context.h>
#include <sluice/select/progress_thread.h>

namespace sluice::grpc {

class ContextThread : public std::enable_shared_from_this<ContextThread> {
 public:
  // All context threads of a process share one arena. Errors: as open_context().
  static Result<std::shared_ptr<ContextThread>> start();
  // The arena of all context threads, made if there is none.
  static Result<std::shared_ptr<Arena>> shared_arena();
  ~ContextThread();
  ContextThread(const ContextThread&) = delete;
  ContextThread& operator=(const ContextThread&) = delete;

  // Runs `work` on the thread, after all that was posted before; dropped once stopped.
  // Thread: any. Blocks: never.
  void post(std::function<void()> work);
  bool on_thread() const { return std::this_thread::get_id() == id_.load(); }
  Context& context() { return *context_; }  // Thread: the context thread's
  Arena& arena() { return *arena_; }        // Thread: any
  // Runs `last`, ends the thread and the context. Where a callback of the user's, which runs on
  // this very thread, is the caller, a thread of its own does so.
  void stop(std::function<void()> last);

 private:
  ContextThread() = default;
  void drain();
  void end();

  std::shared_ptr<Arena> arena_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<ProgressThread> thread_;
  std::atomic<std::thread::id> id_{};
  std::mutex mutex_;  // of what follows
  std::deque<std::function<void()>> work_;
  bool draining_ = false;  // a letter is on its way
  bool stopped_ = false;
};

}  // namespace sluice::grpc

#endif  // SLUICE_GRPC_CONTEXT_THREAD_H_
