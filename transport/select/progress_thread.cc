#include <sluice/runtime/context_core.h>
#include <sluice/select/progress_thread.h>

namespace sluice {
namespace {

struct WorkLetter final : Letter {
  std::function<void(Context&)> work;
  Context* context = nullptr;
};

}  // namespace

ProgressThread::ProgressThread(Context& context)
    : context_(context), mailbox_(ContextCore::of(context).mailbox()) {
  thread_ = std::thread([this] { loop(); });
}

ProgressThread::~ProgressThread() { stop(); }

void ProgressThread::post(std::function<void(Context&)> work) {
  auto* letter = new WorkLetter();
  letter->work = std::move(work);
  letter->context = &context_;
  letter->open = [](Letter* opened) noexcept {
    std::unique_ptr<WorkLetter> own(static_cast<WorkLetter*>(opened));
    own->work(*own->context);
  };
  letter->discard = [](Letter* discarded) noexcept { delete static_cast<WorkLetter*>(discarded); };
  mailbox_->post(letter);
}

void ProgressThread::stop() {
  if (!thread_.joinable()) return;
  post([this](Context&) { stopping_.store(true, std::memory_order_relaxed); });
  thread_.join();
}

void ProgressThread::loop() {
  while (!stopping_.load(std::memory_order_relaxed)) (void)context_.wait(kNever);
}

}  // namespace sluice
