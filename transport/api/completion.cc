#include <sluice/api/completion.h>

#include <algorithm>
#include <utility>

namespace sluice {

void CompletionQueue::on_completion(Completion&& completion) noexcept {
  if (tail_ - head_ == ring_.size()) {
    std::vector<Completion> larger(std::max<size_t>(16, ring_.size() * 2));
    for (size_t i = head_; i != tail_; ++i)
      larger[i - head_] = std::move(ring_[i & (ring_.size() - 1)]);
    tail_ -= head_;
    head_ = 0;
    ring_ = std::move(larger);
  }
  ring_[tail_++ & (ring_.size() - 1)] = std::move(completion);
}

bool CompletionQueue::poll(Completion& out) {
  if (head_ == tail_) return false;
  out = std::move(ring_[head_++ & (ring_.size() - 1)]);
  return true;
}

}  // namespace sluice
