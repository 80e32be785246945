// Slow memory work of a context, in slices: pages for allocations under way, and extents that go
// back to the system. Knows no operation and no path.
#ifndef SLUICE_RUNTIME_POPULATION_H_
#define SLUICE_RUNTIME_POPULATION_H_

#include <atomic>
#include <cstddef>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/allocator/pending_allocation.h>
#include <sluice/base/clock.h>
#include <sluice/runtime/helper_thread.h>

namespace sluice {

// Whoever waits for an allocation.
class PopulationWaiter {
 public:
  // A turn has made one of its allocations ready. Called from progress; it may post nothing.
  virtual void allocation_ready() noexcept = 0;

 protected:
  ~PopulationWaiter() = default;
};

// Thread: the context's. Blocks: for about kTurn in a turn.
class Population final {
 public:
  // A turn of a context that has nothing else to do populates for this long: a peer then waits less
  // than 10 ms for its answer, since one slice more, which nothing interrupts, takes up to 6 ms
  // (docs/performance.md, "Pages"). Much less would cost turns, about 1 us each, for nothing.
  static constexpr Duration kTurn = std::chrono::milliseconds(2);
  // At most so many slices in it, also where a slice takes no time: real ones take 0.4 ms.
  static constexpr size_t kMostSlices = 8;
  // While other work comes in, one slice in each such time: others keep more than half of the
  // thread.
  static constexpr Duration kBetween = std::chrono::milliseconds(1);
  // Small pages that are taken out of our addresses in one slice: 1.5 ms.
  static constexpr size_t kFreeBytes = size_t{16} << 20;

  // Null: there is never any work.
  explicit Population(Arena* arena) : arena_(arena), pages_(*this), freeing_(*this) {}
  // From now on its thread does what takes long. It outlives the work, or is null again before.
  void set_helper(HelperThread* helper) { helper_ = helper; }
  HelperThread* helper() const { return helper_; }
  Population(const Population&) = delete;
  Population& operator=(const Population&) = delete;

  // Takes steps of `pending` in turns, the first that was added first, until it is ready or
  // removed. `waiter` may be null.
  void add(PendingAllocation* pending, PopulationWaiter* waiter) {
    pending_.push_back({pending, waiter});
    busy_ = true;
  }
  // What it leaves goes back in the next turns.
  void remove(PendingAllocation* pending) {
    if (pages_.allocation == pending && helper_ != nullptr && helper_->does(pages_))
      helper_->stop();
    std::erase_if(pending_, [&](const Pending& p) { return p.allocation == pending; });
    busy_ = true;
  }
  // A step of `pending` before its turn. False: nothing to do now, or the helper does it.
  bool step(PendingAllocation& pending) {
    const bool helped =
        pages_.allocation == &pending && helper_ != nullptr && helper_->does(pages_);
    return !helped && pending.step();
  }
  // There may be something to free.
  void wake() { busy_ = true; }

  // False: progress() has nothing to do. Cost: a load.
  bool busy() const { return busy_; }
  // Returns how many slices it did. `others_busy`: the turn did something else.
  size_t progress(bool others_busy);
  // When progress() must run at the latest, or kNever.
  Instant next_timeout() const;

 private:
  struct Pending {
    PendingAllocation* allocation;
    PopulationWaiter* waiter;
  };
  // What the helper does.
  struct PagesJob final : HelperThread::Job {
    explicit PagesJob(Population& p) : population(p) {}
    void run(const std::atomic<bool>& stop) noexcept override;
    Population& population;
    PendingAllocation* allocation = nullptr;
  };
  struct FreeingJob final : HelperThread::Job {
    explicit FreeingJob(Population& p) : population(p) {}
    void run(const std::atomic<bool>& stop) noexcept override;
    void done() noexcept override;
    Population& population;
    bool freed = false;
  };
  bool slice();
  size_t with_helper();
  PendingAllocation* first_pending();
  bool step_first();

  Arena* arena_;
  std::vector<Pending> pending_;
  HelperThread* helper_ = nullptr;
  PagesJob pages_;
  FreeingJob freeing_;
  Instant last_{};
  bool busy_ = false;
  bool in_vain_ = false;  // another thread grew the arena
};

// An allocation in the turns of a population, as long as this lives. Ends before the allocation.
class InTurns {
 public:
  InTurns(Population& population, PendingAllocation& pending, PopulationWaiter* waiter = nullptr)
      : population_(population), pending_(pending) {
    population_.add(&pending_, waiter);
  }
  ~InTurns() { population_.remove(&pending_); }
  InTurns(const InTurns&) = delete;
  InTurns& operator=(const InTurns&) = delete;

 private:
  Population& population_;
  PendingAllocation& pending_;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_POPULATION_H_
