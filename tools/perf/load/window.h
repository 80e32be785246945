// A window of operations that is kept full, for the bandwidth tests of endpoints: posts
// the next one as soon as one has ended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <sluice/api/completion.h>

#include "tools/perf/run/conditions.h"
#include "tools/perf/report/samples.h"
#include "tools/perf/load/workload.h"

namespace sluice::tools {

class Window final : private CompletionSink {
 public:
  // `pauses`, where there is one, is asked before each post; what it takes is in no sample.
  // `list`: posts come in lists of so many, each when there are slots for all of it. At most
  // `depth`.
  explicit Window(uint32_t depth, Pauses* pauses = nullptr, uint32_t list = 1)
      : pauses_(pauses),
        depth_(depth),
        list_(list),
        idle_(depth),
        posted_at_(depth),
        returned_(depth) {}

  void begin(uint64_t iterations, Samples* samples) {
    samples_ = samples;
    iterations_ = iterations;
    completed_ = posted_ = 0;
    for (uint32_t slot = 0; slot < depth_; ++slot) idle_[slot] = slot;
    idle_first_ = 0;
    in_list_ = 0;
    idle_last_ = depth_;
    last_ticks_ = ticks();
  }

  // Calls post(slot, number, options) -> Status for each next number below `iterations` while
  // there is a slot and room. Slots are reused in the order they come free: the first
  // `depth` posts have one each. A sample is the time from a post to its completion.
  template <typename Post>
  Status fill(Post&& post) {
    SLUICE_RETURN_IF_ERROR(failure_);
    while (posted_ < iterations_ && idle_first_ != idle_last_) {
      if (in_list_ == 0 &&
          idle_last_ - idle_first_ < std::min<uint64_t>(list_, iterations_ - posted_))
        break;
      uint32_t slot = idle_[idle_first_ % depth_];
      if (pauses_ != nullptr && *pauses_) {
        pauses_->pause();
        last_ticks_ = ticks();
      }
      PostOptions options{.sink = this, .user_data = slot, .deadline = kNever};
      // What is posted last ends when the bytes have arrived, and all before them.
      if (iterations_ - posted_ <= depth_) options.level = Level::kPlaced;
      Status status = post(slot, posted_, options);
      if (status.code() == Code::kTryAgain) break;
      SLUICE_RETURN_IF_ERROR(status);
      posted_at_[slot] = last_ticks_;
      ++idle_first_;
      ++posted_;
      in_list_ = (in_list_ + 1) % list_;
    }
    return Status();
  }

  bool over() const { return completed_ == iterations_; }
  // Nothing is under way that would end.
  bool stuck() const { return posted_ == completed_; }
  uint64_t completed() const { return completed_; }

  // The buffer that came back with the slot's last completion.
  Buffer& returned(uint32_t slot) { return returned_[slot]; }

 private:
  void on_completion(Completion&& completion) noexcept override {
    auto slot = static_cast<uint32_t>(completion.user_data);
    if (!completion.status.ok()) failure_ = completion.status;
    if (!completion.buffers.empty()) returned_[slot] = std::move(completion.buffers[0]);
    ++completed_;
    idle_[idle_last_++ % depth_] = slot;
    if (samples_ == nullptr) return;
    // One reading serves as the end of this operation and as the start of its successor.
    last_ticks_ = ticks();
    samples_->add(last_ticks_ - posted_at_[slot]);
  }

  Pauses* pauses_;
  uint32_t depth_;
  uint32_t list_, in_list_ = 0;  // in_list_: posted of the one begun
  std::vector<uint32_t> idle_;   // ring of slots
  uint64_t idle_first_ = 0, idle_last_ = 0;
  std::vector<uint64_t> posted_at_;
  std::vector<Buffer> returned_;
  Samples* samples_ = nullptr;
  uint64_t iterations_ = 0, posted_ = 0, completed_ = 0;
  uint64_t last_ticks_ = 0;
  Status failure_;
};

}  // namespace sluice::tools
