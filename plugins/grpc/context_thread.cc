#include <sluice/grpc/context_thread.h>

#include <future>
#include <utility>

#include <sluice/select/open.h>

namespace sluice::grpc {
namespace {

std::mutex arena_mutex;
// Kept once a program has asked for it: its tensors stay of the arena of later channels.
std::shared_ptr<Arena> asked_arena;
std::weak_ptr<Arena> common_arena;

}  // namespace

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
  thread->thread_ = std::make_unique<ProgressThread>(*thread->context_);
  thread->thread_->run([&](Context&) { thread->id_ = std::this_thread::get_id(); });
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

void ContextThread::post(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    work_.push_back(std::move(work));
    if (std::exchange(draining_, true)) return;
  }
  // Letters of a mailbox are opened last first: one of them drains them all, in order.
  thread_->post([this](Context&) { drain(); });
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

void ContextThread::stop(std::function<void()> last) {
  post(std::move(last));
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  if (on_thread()) {
    std::thread([self = shared_from_this()] { self->end(); }).detach();
  } else {
    end();
  }
}

void ContextThread::end() {
  if (!thread_) return;
  // What is posted runs before: letters are opened last first, so wait for the queue.
  std::promise<void> drained;
  thread_->post([&](Context&) {
    drain();
    drained.set_value();
  });
  drained.get_future().wait();
  thread_->stop();
  thread_.reset();
  context_.reset();
}

}  // namespace sluice::grpc
