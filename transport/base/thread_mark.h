// Tells a call from a second thread while a first one is inside.
#ifndef SLUICE_BASE_THREAD_MARK_H_
#define SLUICE_BASE_THREAD_MARK_H_

#include <pthread.h>

#include <atomic>

#include <sluice/base/status.h>

namespace sluice {

// Of an object that one thread at a time may call. Finds most overlaps, not all: two threads that
// enter within the same few nanoseconds are missed. Threads that take turns are not told.
// Cost of entering: two loads and a store, no locked instruction.
class ThreadMark {
 public:
  // Marks the running thread as inside until the end of the scope.
  class Inside {
   public:
    explicit Inside(ThreadMark& mark) : mark_(mark), before_(mark.inside_.load(kRelaxed)) {
      if (alone()) mark_.inside_.store(::pthread_self(), kRelaxed);
    }
    ~Inside() {
      if (alone()) mark_.inside_.store(before_, kRelaxed);
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    // False: another thread was inside, and the mark is its own.
    bool alone() const { return before_ == pthread_t{} || before_ == ::pthread_self(); }

   private:
    ThreadMark& mark_;
    const pthread_t before_;
  };

  // Another thread is inside.
  bool elsewhere() const {
    const pthread_t inside = inside_.load(kRelaxed);
    return inside != pthread_t{} && inside != ::pthread_self();
  }
  // kWrongState: what to do about it.
  static Status refusal();

 private:
  static constexpr auto kRelaxed = std::memory_order_relaxed;
  std::atomic<pthread_t> inside_{};
};

}  // namespace sluice

#endif  // SLUICE_BASE_THREAD_MARK_H_
