// The steps of one key that have ended. Private to the exchange.
#ifndef SLUICE_EXCHANGE_ENDED_STEPS_H_
#define SLUICE_EXCHANGE_ENDED_STEPS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice::internal {

// Steps end in order, or nearly so: they are kept as runs of neighbours, and one run is enough for
// a million steps. Where there would be more than kRuns, the lowest is forgotten.
class EndedSteps {
 public:
  static constexpr size_t kRuns = 16;

  // Below the highest step there is.
  void add(uint64_t step) {
    if (count_ > 0 && step == runs_[count_ - 1].last + 1) [[likely]] {
      ++runs_[count_ - 1].last;
      return;
    }
    size_t at = 0;
    while (at < count_ && runs_[at].last + 1 < step) ++at;
    if (at == count_ || runs_[at].first > step + 1) return insert(at, step);
    Run& run = runs_[at];
    run.first = std::min(run.first, step);
    run.last = std::max(run.last, step);
    if (at + 1 < count_ && run.last + 1 == runs_[at + 1].first) {
      run.last = runs_[at + 1].last;
      erase(at + 1);
    }
  }
  bool has(uint64_t step) const {
    if (count_ == 0 || step > runs_[count_ - 1].last) [[likely]]
      return false;  // steps mostly grow
    size_t at = count_ - 1;
    while (at > 0 && runs_[at].first > step) --at;
    return step >= runs_[at].first && step <= runs_[at].last;
  }

 private:
  struct Run {
    uint64_t first, last;
  };
  void insert(size_t at, uint64_t step) {
    if (count_ == kRuns) {
      if (at == 0) return;
      erase(0);
      --at;
    }
    std::copy_backward(runs_.begin() + at, runs_.begin() + count_, runs_.begin() + count_ + 1);
    runs_[at] = {step, step};
    ++count_;
  }
  void erase(size_t at) {
    std::copy(runs_.begin() + at + 1, runs_.begin() + count_, runs_.begin() + at);
    --count_;
  }

  std::array<Run, kRuns> runs_{};  // in order, a step or more between them
  size_t count_ = 0;
};

}  // namespace sluice::internal

#endif  // SLUICE_EXCHANGE_ENDED_STEPS_H_
