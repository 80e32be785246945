// A thread that progresses one context, for programs whose own threads cannot. The only
// thread sluice ever starts, and only when asked to.
#ifndef SLUICE_SELECT_PROGRESS_THREAD_H_
#define SLUICE_SELECT_PROGRESS_THREAD_H_

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include <sluice/api/context.h>

namespace sluice {

class Mailbox;

// From construction to stop() the context and all that belongs to it are the thread's:
// other threads reach them by run() and post() only.
class ProgressThread {
 public:
  // Requires: the context outlives it.
  explicit ProgressThread(Context& context);
  // Stops; what was posted before still runs.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // Runs `work` on the thread, soon. Thread: any. Blocks: never.
  void post(std::function<void(Context&)> work);
  // Runs `work` on the thread and returns its result. Thread: any but the thread itself.
  // Blocks: until then.
  template <typename Work>
  auto run(Work work) -> decltype(work(std::declval<Context&>())) {
    using T = decltype(work(std::declval<Context&>()));
    std::promise<T> promise;
    std::future<T> future = promise.get_future();
    post([&](Context& context) {
      if constexpr (std::is_void_v<T>) {
        work(context);
        promise.set_value();
      } else {
        promise.set_value(work(context));
      }
    });
    return future.get();
  }
  void stop();

 private:
  void loop();

  Context& context_;
  std::shared_ptr<Mailbox> mailbox_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace sluice

#endif  // SLUICE_SELECT_PROGRESS_THREAD_H_
