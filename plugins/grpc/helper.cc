#include <sluice/grpc/helper.h>

#include <future>
#include <utility>

#include <sluice/select/open.h>

namespace sluice::grpc {
namespace {

std::mutex arena_mutex;
std::weak_ptr<Arena> common_arena;

}  // namespace

Result<std::shared_ptr<Helper>> Helper::start() {
  std::shared_ptr<Helper> helper(new Helper());
  {
    std::lock_guard lock(arena_mutex);
    ContextOptions options;
    options.arena = common_arena.lock();
    SLUICE_TRY(helper->context_, open_context(options));
    helper->arena_ = helper->context_->shared_arena();
    common_arena = helper->arena_;
  }
  helper->thread_ = std::make_unique<ProgressThread>(*helper->context_);
  helper->thread_->run([&](Context&) { helper->id_ = std::this_thread::get_id(); });
  return helper;
}

Helper::~Helper() { end(); }

void Helper::post(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    work_.push_back(std::move(work));
    if (std::exchange(draining_, true)) return;
  }
  // Letters of a mailbox are opened last first: one of them drains them all, in order.
  thread_->post([this](Context&) { drain(); });
}

void Helper::drain() {
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

void Helper::stop(std::function<void()> last) {
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

void Helper::end() {
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
