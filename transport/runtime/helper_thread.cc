#include <sluice/runtime/helper_thread.h>

#include <pthread.h>
#include <signal.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <system_error>
#include <utility>

namespace sluice {
namespace {

// Of a join() before it sleeps: some 50 us, what a wake costs.
constexpr int kPolls = 1000;

}  // namespace

HelperThread::HelperThread(std::shared_ptr<Mailbox> mailbox)
    : mailbox_(std::move(mailbox)), owner_(std::make_shared<Owner>(this)) {}

Result<std::unique_ptr<HelperThread>> HelperThread::start(std::shared_ptr<Mailbox> mailbox) {
  std::unique_ptr<HelperThread> helper(new HelperThread(std::move(mailbox)));
  // Signals are the program's, for threads of its own.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  try {
    helper->thread_ = std::thread([own = helper.get()] { own->loop(); });
  } catch (const std::system_error& refused) {
    error = refused.code().value();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0)
    return Status(Code::kNoMemory, Scope::kContext, "runtime/helper_thread",
                  "no thread for the helper; raise `ulimit -u` or the cgroup's pids.max, or leave "
                  "ContextOptions::helper_thread unset",
                  error);
  ::pthread_setname_np(helper->thread_.native_handle(), "sluice-helper");
  return helper;
}

HelperThread::~HelperThread() {
  owner_->thread = nullptr;
  if (!thread_.joinable()) return;
  stop();
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HelperThread::begin(Job& job, Ends ends) {
  job_ = &job;
  ++number_;
  std::unique_ptr<News> news;
  if (ends == Ends::kByDone) {
    news = std::make_unique<News>();
    news->owner = owner_;
    news->number = number_;
    news->open = [](Letter* letter) noexcept {
      std::unique_ptr<News> opened(static_cast<News*>(letter));
      if (HelperThread* thread = opened->owner->thread) thread->heard_of(opened->number);
    };
    news->discard = [](Letter* letter) noexcept { delete static_cast<News*>(letter); };
  }
  ran_.store(false, std::memory_order_relaxed);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !running_; });  // the last one was only polled for
    asked_ = &job;
    news_ = std::move(news);
    running_ = true;
  }
  changed_.notify_all();
}

void HelperThread::heard_of(uint64_t number) noexcept {
  if (job_ != nullptr && number == number_) std::exchange(job_, nullptr)->done();
}

void HelperThread::join() {
  for (int poll = 0; poll < kPolls && !ran_.load(std::memory_order_acquire); ++poll) {
#ifdef __SSE2__
    _mm_pause();
#endif
  }
  if (!ran_.load(std::memory_order_acquire)) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !running_; });
  }
  job_ = nullptr;
}

void HelperThread::stop() {
  stop_.store(true, std::memory_order_relaxed);
  join();
  stop_.store(false, std::memory_order_relaxed);
}

void HelperThread::loop() noexcept {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return over_ || asked_ != nullptr; });
    if (over_) return;
    Job* job = std::exchange(asked_, nullptr);
    News* news = news_.release();
    lock.unlock();
    job->run(stop_);
    ran_.store(true, std::memory_order_release);
    lock.lock();
    running_ = false;
    if (news != nullptr) mailbox_->post(news);
    changed_.notify_all();
  }
}

}  // namespace sluice
