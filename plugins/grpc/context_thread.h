// A context behind a channel or a listener, and the thread that progresses it. Runs what other
// threads post to it, in order. A thread that waits for one thing anyway progresses the context
// itself meanwhile, which saves waking two threads.
#ifndef SLUICE_GRPC_CONTEXT_THREAD_H_
#define SLUICE_GRPC_CONTEXT_THREAD_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <semaphore>
#include <thread>

#include <sluice/api/context.h>
#include <sluice/runtime/mailbox.h>

namespace sluice::grpc {

// "The turn" is the right to use the context. Whoever has it is "the context thread" in the
// comments of this folder: the thread that belongs to it, a caller that waits (wait_for()), or a
// thread in run_soon().
class ContextThread : public std::enable_shared_from_this<ContextThread> {
 public:
  // What a caller waits for.
  class Waiter {
   public:
    // Thread: the context thread's. The waiter may be gone when this returns.
    void done();

   private:
    friend class ContextThread;
    ContextThread* thread_ = nullptr;
    bool done_ = false;   // with the turn, as the next
    bool leads_ = false;  // it progresses the context
    std::binary_semaphore told_{0};
  };

  // All context threads of a process share one arena. Errors: as open_context().
  static Result<std::shared_ptr<ContextThread>> start();
  // The arena of all context threads, made if there is none.
  static Result<std::shared_ptr<Arena>> shared_arena();
  ~ContextThread();
  ContextThread(const ContextThread&) = delete;
  ContextThread& operator=(const ContextThread&) = delete;

  // Runs `work` on the context thread, after all that was posted before; dropped once stopped.
  // Thread: any. Blocks: never.
  void post(std::function<void()> work);
  // Runs `work`, which may wait for the context's events, on the thread that belongs to it.
  void run_apart(std::function<void()> work);
  // Runs short work, behind which something leaves, at once and on this thread, if nobody has the
  // turn; else as post(). Thread: any.
  void run_soon(std::function<void()> work);
  // Runs `begin` as post() does, and returns after waiter.done(). `busy` says whether others wait
  // for what arrives at the context. Thread: any without the turn. Requires: not stopped.
  void wait_for(Waiter& waiter, const std::function<void()>& begin,
                const std::function<bool()>& busy);
  bool has_turn() const { return holder_.load() == std::this_thread::get_id(); }

  Context& context() { return *context_; }  // Thread: the context thread's
  Arena& arena() { return *arena_; }        // Thread: any
  // Runs `last`, ends the thread and the context. Where a callback of the user's, which has the
  // turn, is the caller, a thread of its own does so.
  void stop(std::function<void()> last);

 private:
  // Who progresses the context as soon as it has something to do.
  enum class Leader : uint8_t {
    kThread,
    kCaller,
    kNobody,  // the thread does so if no caller comes for kAbsence
  };
  class ThreadGate;
  class CallerGate;

  ContextThread() = default;
  void take_turn();
  bool try_turn();
  void give_turn();
  void loop();
  bool run_apart_work();
  void park();
  void unpark();
  void wake_thread();
  void lead(Waiter& waiter, const std::function<bool()>& busy);
  void stop_leading(const std::function<bool()>& busy);
  void rearm();
  void ring();
  void ring_again();
  void drain();
  void end();

  std::shared_ptr<Arena> arena_;
  std::unique_ptr<Context> context_;
  std::shared_ptr<Mailbox> mailbox_;  // the context's
  std::thread thread_;

  std::mutex turn_;
  std::atomic<std::thread::id> holder_{};
  std::atomic<Leader> leader_{Leader::kThread};  // written with the turn
  std::atomic<uint64_t> leads_{0};               // callers that led so far
  // With the turn:
  bool thread_asleep_ = false;
  Instant thread_until_ = kNever;
  bool caller_asleep_ = false;  // the one that leads
  Waiter* leading_ = nullptr;   // its
  Instant caller_until_ = kNever;
  std::deque<Waiter*> followers_;  // callers that wait while another one leads

  std::mutex park_mutex_;  // of what follows
  std::condition_variable parked_;
  bool is_parked_ = false, looks_again_ = false, unparked_ = false;

  std::mutex mutex_;  // of what follows
  std::deque<std::function<void()>> work_, apart_;
  bool draining_ = false;  // a letter is on its way
  bool stopped_ = false;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> thread_called_{false};  // it has work of its own, or is to end
};

}  // namespace sluice::grpc

#endif  // SLUICE_GRPC_CONTEXT_THREAD_H_
