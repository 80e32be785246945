#include <sluice/grpc/context_thread.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <sluice/runtime/context_core.h>
#include <sluice/select/open.h>

namespace sluice::grpc {
namespace {

std::mutex arena_mutex;
// Kept once a program has asked for it: its tensors stay of the arena of later channels.
std::shared_ptr<Arena> asked_arena;
std::weak_ptr<Arena> common_arena;

// How long nobody may progress a context whose callers come and go. What arrives meanwhile waits,
// so only where nobody waits for it.
constexpr auto kAbsence = std::chrono::milliseconds(2);
// Turns until the context is quiet, before its thread is woken instead.
constexpr int kTurnsToQuiet = 64;

struct WorkLetter final : Letter {
  std::function<void()> work;
};

void post_letter(Mailbox& mailbox, std::function<void()> work) {
  auto* letter = new WorkLetter();
  letter->work = std::move(work);
  letter->open = [](Letter* opened) noexcept {
    std::unique_ptr<WorkLetter> own(static_cast<WorkLetter*>(opened));
    own->work();
  };
  letter->discard = [](Letter* discarded) noexcept { delete static_cast<WorkLetter*>(discarded); };
  mailbox.post(letter);
}

}  // namespace

// --- Who has the turn -------------------------------------------------------------------------

void ContextThread::take_turn() {
  turn_.lock();
  holder_ = std::this_thread::get_id();
}

bool ContextThread::try_turn() {
  if (!turn_.try_lock()) return false;
  holder_ = std::this_thread::get_id();
  return true;
}

void ContextThread::give_turn() {
  holder_ = std::thread::id();
  turn_.unlock();
}

class ContextThread::ThreadGate final : public WaitGate {
 public:
  explicit ThreadGate(ContextThread& thread) : thread_(thread) {}
  void leave(Instant until) override {
    thread_.ring_again();
    thread_.thread_asleep_ = true;
    thread_.thread_until_ = until;
    thread_.give_turn();
  }
  void enter() override {
    while (true) {
      thread_.park();
      thread_.take_turn();
      if (thread_.leader_ != Leader::kCaller || thread_.thread_called_) break;
      thread_.give_turn();  // a caller was faster
    }
    thread_.thread_asleep_ = false;
    if (thread_.leader_ == Leader::kNobody) thread_.leader_ = Leader::kThread;
  }

 private:
  ContextThread& thread_;
};

class ContextThread::CallerGate final : public WaitGate {
 public:
  explicit CallerGate(ContextThread& thread) : thread_(thread) {}
  void leave(Instant until) override {
    thread_.ring_again();
    thread_.caller_asleep_ = true;
    thread_.caller_until_ = until;
    thread_.give_turn();
  }
  void enter() override {
    thread_.take_turn();
    thread_.caller_asleep_ = false;
  }

 private:
  ContextThread& thread_;
};

// Wakes whoever sleeps in the context.
void ContextThread::ring() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(mailbox_->doorbell(), &one, sizeof(one));
}

// Before the turn is given away. A sleeper that is called may not have run yet, and this thread may
// have taken the bell from it: then it sleeps on.
void ContextThread::ring_again() {
  if ((caller_asleep_ && leading_->done_) || (thread_asleep_ && thread_called_)) ring();
}

// The same, for whoever sleeps in the context and has to progress it.
void ContextThread::rearm() {
  ring_again();
  const bool caller = leader_ == Leader::kCaller;
  if (!(caller ? caller_asleep_ : thread_asleep_)) return;
  // Frames leave in a turn: what a turn did may have left some for the next one.
  for (int i = 0; i < kTurnsToQuiet; ++i) {
    if (context_->progress() > 0) {
      ring_again();
    } else if (context_->prepare_to_sleep()) {
      if (context_->next_timeout() < (caller ? caller_until_ : thread_until_)) ring();
      return;
    }
  }
  ring();
}

// --- The thread of its own --------------------------------------------------------------------

void ContextThread::loop() {
  ThreadGate gate(*this);
  take_turn();
  while (true) {
    thread_called_ = false;  // before it looks
    if (run_apart_work()) continue;
    if (stopping_) break;
    (void)context_->wait(kNever, gate);
  }
  drain();
  give_turn();
}

bool ContextThread::run_apart_work() {
  std::function<void()> next;
  {
    std::lock_guard lock(mutex_);
    if (apart_.empty()) return false;
    next = std::move(apart_.front());
    apart_.pop_front();
  }
  next();
  return true;
}

// Until it is the thread that has to progress the context. Where callers come and go within
// kAbsence, the thread sleeps on and looks from time to time; beside one that leads for long it
// does not look.
void ContextThread::park() {
  std::unique_lock lock(park_mutex_);
  uint64_t seen = 0;
  is_parked_ = true;
  while (leader_ != Leader::kThread && !std::exchange(unparked_, false)) {
    looks_again_ = leader_ == Leader::kNobody || leads_ != seen;  // seen: not at first
    seen = leads_;
    const auto woken = [&] { return unparked_; };
    if (!looks_again_) {
      parked_.wait(lock, woken);
    } else if (!parked_.wait_for(lock, kAbsence, woken) && leader_ == Leader::kNobody &&
               leads_ == seen) {
      break;
    }
  }
  is_parked_ = false;
  unparked_ = false;
}

void ContextThread::unpark() {
  std::lock_guard lock(park_mutex_);
  unparked_ = true;
  parked_.notify_one();
}

// Wherever it is: in a turn, which the letter ends; asleep; or parked.
void ContextThread::wake_thread() {
  thread_called_ = true;
  post_letter(*mailbox_, [] {});
  ring();
  unpark();
}

// --- Callers that wait ------------------------------------------------------------------------

void ContextThread::Waiter::done() {
  done_ = true;
  if (!leads_) {
    std::erase(thread_->followers_, this);
    return told_.release();
  }
  if (thread_->caller_asleep_) thread_->ring();
}

void ContextThread::wait_for(Waiter& waiter, const std::function<void()>& begin,
                             const std::function<bool()>& busy) {
  waiter.thread_ = this;
  if (try_turn()) {
    drain();
    begin();
    if (leader_ != Leader::kCaller) {
      waiter.leads_ = true;
      leader_ = Leader::kCaller;
      return lead(waiter, busy);
    }
    if (!waiter.done_) followers_.push_back(&waiter);
    rearm();
    give_turn();
  } else {
    // Added first: as soon as it is done, its caller returns and `waiter` is gone.
    post([&] {
      followers_.push_back(&waiter);
      begin();
    });
  }
  waiter.told_.acquire();
  if (!waiter.leads_) return;
  take_turn();
  lead(waiter, busy);
}

void ContextThread::lead(Waiter& waiter, const std::function<bool()>& busy) {
  CallerGate gate(*this);
  leading_ = &waiter;
  ++leads_;
  while (!waiter.done_) (void)context_->wait(kNever, gate);
  stop_leading(busy);
  give_turn();
}

void ContextThread::stop_leading(const std::function<bool()>& busy) {
  if (!followers_.empty()) {
    Waiter* next = followers_.front();
    followers_.pop_front();
    next->leads_ = true;
    return next->told_.release();
  }
  {
    std::lock_guard lock(park_mutex_);
    if (is_parked_) {
      leader_ = Leader::kNobody;
      bool needed = !looks_again_ || busy();
      if (!needed) {
        std::lock_guard work_lock(mutex_);
        needed = !work_.empty() || !apart_.empty();
      }
      if (!needed) return;
      unparked_ = true;
      return parked_.notify_one();
    }
    leader_ = Leader::kThread;
  }
  rearm();
}

// --- Work of other threads --------------------------------------------------------------------

void ContextThread::post(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    work_.push_back(std::move(work));
    if (std::exchange(draining_, true)) return;
  }
  // Letters of a mailbox are opened last first: one of them drains them all, in order.
  post_letter(*mailbox_, [this] { drain(); });
  if (leader_ == Leader::kNobody) unpark();
}

void ContextThread::run_apart(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    apart_.push_back(std::move(work));
  }
  wake_thread();
}

void ContextThread::run_soon(std::function<void()> work) {
  if (has_turn() || !try_turn()) return post(std::move(work));
  if (context_ != nullptr) {
    work();
    (void)context_->progress();  // also where nobody sleeps
    if (leader_ == Leader::kNobody) {
      unpark();
    } else {
      rearm();
    }
  }
  give_turn();
}

void ContextThread::drain() {
  std::unique_lock lock(mutex_);
  // What is posted from now on sends a letter of its own: work that waits, and so progresses the
  // context, does not hold up what comes behind it.
  draining_ = false;
  while (!work_.empty()) {
    std::function<void()> next = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    next();
    next = nullptr;
    lock.lock();
  }
}

// --- Beginning and end ------------------------------------------------------------------------

Result<std::shared_ptr<ContextThread>> ContextThread::start() {
  std::shared_ptr<ContextThread> thread(new ContextThread());
  {
    std::lock_guard lock(arena_mutex);
    ContextOptions options;
    options.arena = common_arena.lock();
    SLUICE_TRY(thread->context_, open_context(options));
    thread->arena_ = thread->context_->shared_arena();
    common_arena = thread->arena_;
  }
  thread->mailbox_ = ContextCore::of(*thread->context_).mailbox();
  thread->thread_ = std::thread([own = thread.get()] { own->loop(); });
  return thread;
}

Result<std::shared_ptr<Arena>> ContextThread::shared_arena() {
  std::lock_guard lock(arena_mutex);
  if (asked_arena) return asked_arena;
  asked_arena = common_arena.lock();
  if (asked_arena) return asked_arena;
  SLUICE_TRY(std::unique_ptr<Context> context, open_context());
  common_arena = asked_arena = context->shared_arena();
  return asked_arena;
}

ContextThread::~ContextThread() { end(); }

void ContextThread::stop(std::function<void()> last) {
  run_apart(std::move(last));
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  if (has_turn()) {
    std::thread([self = shared_from_this()] { self->end(); }).detach();
  } else {
    end();
  }
}

void ContextThread::end() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  wake_thread();
  thread_.join();
  take_turn();
  context_.reset();
  give_turn();
}

}  // namespace sluice::grpc
