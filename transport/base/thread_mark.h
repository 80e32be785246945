// Tells a call from a second thread while a first one is inside.
#ifndef SLUICE_BASE_THREAD_MARK_H_
#define SLUICE_BASE_THREAD_MARK_H_

#include <atomic>

#include <sluice/base/status.h>

namespace sluice {

namespace internal {
// Its address names the running thread: one instruction, where pthread_self() is a call.
inline thread_local char this_thread;
}  // namespace internal

// Of an object that one thread at a time may call. Finds most overlaps, not all: two threads that
// enter within the same few nanoseconds are missed. Threads that take turns are not told.
// Cost of entering: a load and a store, no locked instruction.
class ThreadMark {
 public:
  // Marks the running thread as inside until the end of the scope.
  class Inside {
   public:
    explicit Inside(ThreadMark& mark) : mark_(mark), before_(mark.inside_.load(kRelaxed)) {
      if (before_ == nullptr) [[likely]]
        mark_.inside_.store(self(), kRelaxed);
    }
    // Nested in another scope of this thread, the mark stays.
    ~Inside() {
      if (before_ == nullptr) [[likely]]
        mark_.inside_.store(nullptr, kRelaxed);
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    // False: another thread was inside, and the mark is its own.
    bool alone() const { return before_ == nullptr || before_ == self(); }

   private:
    ThreadMark& mark_;
    const void* const before_;
  };

  // Another thread is inside.
  bool elsewhere() const {
    const void* inside = inside_.load(kRelaxed);
    return inside != nullptr && inside != self();
  }
  // kWrongState: what to do about it.
  static Status refusal();

 private:
  static constexpr auto kRelaxed = std::memory_order_relaxed;
  static const void* self() { return &internal::this_thread; }
  std::atomic<const void*> inside_{};
};

}  // namespace sluice

#endif  // SLUICE_BASE_THREAD_MARK_H_
