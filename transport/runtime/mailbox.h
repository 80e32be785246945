// How a view dropped on any thread tells the context that must send its RELEASE.
// Two lock-free stacks of intrusive letters and a doorbell for a sleeping owner.
#ifndef SLUICE_RUNTIME_MAILBOX_H_
#define SLUICE_RUNTIME_MAILBOX_H_

#include <atomic>
#include <cstdint>

namespace sluice {

// Lies inside the object that is handed over.
struct Letter {
  Letter* next = nullptr;
  void (*open)(Letter* letter) noexcept = nullptr;     // on the owner's thread
  void (*discard)(Letter* letter) noexcept = nullptr;  // the owner is gone; any thread
};

// Shared by the context and every view: a view may outlive the context.
class Mailbox {
 public:
  // `doorbell` is an eventfd the mailbox owns from now on.
  explicit Mailbox(int doorbell) : doorbell_(doorbell) {}
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  int doorbell() const { return doorbell_; }

  // Thread: any. Blocks: never. Cost: one compare-and-swap, and a write() only
  // if the owner sleeps.
  void post(Letter* letter) noexcept { post_to(any_, letter); }
  // The same of a letter that calls nothing of the program: the owner may open it inside a call.
  void post_plain(Letter* letter) noexcept { post_to(plain_, letter); }
  bool empty() const noexcept { return is_empty(plain_) && is_empty(any_); }
  // Opens all letters; the number. Thread: the owner's.
  size_t open_all() noexcept;
  // Opens the plain ones.
  size_t open_plain() noexcept { return open(plain_); }
  // Owner: about to sleep. False: a letter is there already.
  bool begin_sleep() noexcept;
  void end_sleep() noexcept;
  // Owner: no more letters will be opened; those that come are discarded.
  void close() noexcept;

  // Tensors of peers that somebody holds: counted by whoever makes them, on the owner's thread.
  uint64_t views_held = 0;

 private:
  using Stack = std::atomic<Letter*>;
  static Letter* closed_mark() noexcept;
  static bool is_empty(const Stack& stack) noexcept {
    return stack.load(std::memory_order_relaxed) == nullptr;
  }
  void post_to(Stack& stack, Letter* letter) noexcept;
  static size_t open(Stack& stack) noexcept;
  static void close(Stack& stack) noexcept;

  Stack any_{nullptr};
  Stack plain_{nullptr};
  std::atomic<bool> sleeping_{false};
  int doorbell_;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_MAILBOX_H_
