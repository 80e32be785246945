// The one thread that a program lets a context have beside its own, for work that would keep the
// context from its peers: pages, and halves of large copies. Knows none of that work.
#ifndef SLUICE_RUNTIME_HELPER_THREAD_H_
#define SLUICE_RUNTIME_HELPER_THREAD_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include <sluice/base/result.h>
#include <sluice/runtime/mailbox.h>

namespace sluice {

// Does one job at a time. It blocks all signals, and its name is sluice-helper. Thread: the
// context's. In a forked child there is no such thread: nothing may be called there.
class HelperThread {
 public:
  class Job {
   public:
    // On the helper's thread. Returns when it is done, or soon after `stop` is true.
    virtual void run(const std::atomic<bool>& stop) noexcept = 0;
    // On the context's thread, in a turn after run() has returned.
    virtual void done() noexcept {}

   protected:
    ~Job() = default;
  };

  // Errors: kNoMemory (no thread is to be had; the detail names the limit).
  static Result<std::unique_ptr<HelperThread>> start(std::shared_ptr<Mailbox> mailbox);
  // As stop().
  ~HelperThread();
  HelperThread(const HelperThread&) = delete;
  HelperThread& operator=(const HelperThread&) = delete;

  // How a job ends: by done(), or by the join() of whoever began it.
  enum class Ends : uint8_t { kByDone, kByJoin };

  // From begin() to done(), join() or stop().
  bool busy() const { return job_ != nullptr; }
  bool does(const Job& job) const { return job_ == &job; }
  // Requires: not busy(). The job stays while busy(). Cost: a wake.
  void begin(Job& job, Ends ends = Ends::kByDone);
  // Waits until run() has returned; done() is not called. Blocks: polls for a moment, then sleeps.
  void join();
  // Tells run() to stop, then as join().
  void stop();

 private:
  // The news that run() has returned may come when nobody waits for it any more.
  struct Owner {
    HelperThread* thread;
  };
  struct News final : Letter {
    std::shared_ptr<Owner> owner;
    uint64_t number = 0;
  };

  explicit HelperThread(std::shared_ptr<Mailbox> mailbox);
  void loop() noexcept;
  void heard_of(uint64_t number) noexcept;

  std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<Owner> owner_;
  Job* job_ = nullptr;
  uint64_t number_ = 0;  // of the job
  std::atomic<bool> stop_{false};
  std::atomic<bool> ran_{false};  // the job's run() has returned

  std::mutex mutex_;
  std::condition_variable changed_;
  Job* asked_ = nullptr;  // under the mutex, as all that follows
  std::unique_ptr<News> news_;
  bool running_ = false;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_HELPER_THREAD_H_
