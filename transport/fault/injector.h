// The faults of one context: decorates its new connections, gives each its turn, counts what
// was done to them. Knows no backend.
#ifndef SLUICE_FAULT_INJECTOR_H_
#define SLUICE_FAULT_INJECTOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/fault/plan.h>
#include <sluice/spi/link_decorator.h>

namespace sluice::fault {

class FaultyLink;

// Thread: the context's.
class Injector final : public LinkDecorator,
                       public ProgressHook,
                       public std::enable_shared_from_this<Injector> {
 public:
  explicit Injector(const Plan& plan) : plan_(plan), random_(plan.seed) {}

  std::unique_ptr<ViewLink> decorate(std::unique_ptr<ViewLink> inner) override;
  std::unique_ptr<StreamLink> decorate(std::unique_ptr<StreamLink> inner) override;
  std::unique_ptr<DeviceLink> decorate(std::unique_ptr<DeviceLink> inner) override;
  size_t progress(Instant now) override;
  // At once while something is held back.
  Instant next_timeout() override;

  // The next connection is struck so; those before and after it are not.
  void strike_next(const Strike& strike);
  // Whether it has happened.
  bool struck() const { return struck_; }

  // What was done to all of them.
  uint64_t held_back() const { return held_back_; }
  uint64_t refused() const { return refused_; }
  uint64_t split() const { return split_; }
  uint64_t spurious() const { return spurious_; }

 private:
  friend class FaultyLink;
  // What the plan has for this call. Counts it.
  Action strike(Call call, uint32_t connection);
  bool hold_back() { return count(held_back_, plan_.late_percent); }
  bool refuse() { return count(refused_, plan_.busy_percent); }
  bool split_push() { return count(split_, plan_.split_percent); }
  bool wake_spuriously() { return count(spurious_, plan_.spurious_percent); }
  uint32_t turns() { return 1 + static_cast<uint32_t>(random_.below(plan_.most_turns)); }
  uint64_t below(uint64_t bound) { return random_.below(bound); }
  bool count(uint64_t& counter, uint32_t percent) {
    if (!random_.percent(percent)) return false;
    ++counter;
    return true;
  }
  void forget(FaultyLink& link);
  template <typename Faulty, typename Kind>
  std::unique_ptr<Kind> make(std::unique_ptr<Kind> inner);

  Plan plan_;
  Random random_;
  std::vector<FaultyLink*> links_;  // null: closed
  uint32_t connections_ = 0;
  Strike strike_;
  uint32_t to_strike_ = 0;  // number of the connection
  uint64_t calls_ = 0;      // of the kind that is struck, there
  uint64_t held_back_ = 0, refused_ = 0, split_ = 0, spurious_ = 0;
  bool struck_ = false;
  bool running_ = false;
};

// Connections that `context` makes from now on suffer `plan`. The context keeps the injector.
std::shared_ptr<Injector> inject(Context& context, const Plan& plan);

}  // namespace sluice::fault

#endif  // SLUICE_FAULT_INJECTOR_H_
