// What one connection may take of one turn of progress(): bounded in messages and in time,
// so that a flood of small messages holds nobody else up. Bytes are bounded by the link.
#ifndef SLUICE_PROTO_TURN_BUDGET_H_
#define SLUICE_PROTO_TURN_BUDGET_H_

#include <cstdint>

#include <sluice/base/clock.h>

namespace sluice::proto {

// Enough for any window of small messages (256 are in flight by default), and a bound also
// where the clock stands still.
inline constexpr uint32_t kTurnMessages = 8192;
// A turn of a context serves many connections and must stay below 5 ms of the thread.
inline constexpr Duration kTurnTime = std::chrono::microseconds(500);

class TurnBudget {
 public:
  explicit TurnBudget(Duration time = kTurnTime) : time_(time) {}
  // Call before each message that is handled. False: stop, the rest waits for the next
  // turn. Cost: reads the clock once in 32 calls, first at the 32nd.
  bool spend() {
    if (++messages_ % kMessagesPerClock != 0) [[likely]]
      return true;
    if (messages_ >= kTurnMessages) return false;
    const Instant t = now();
    if (messages_ == kMessagesPerClock) start_ = t;
    return t - start_ < time_;
  }
  uint32_t messages() const { return messages_; }

 private:
  static constexpr uint32_t kMessagesPerClock = 32;
  uint32_t messages_ = 0;
  Instant start_{};
  Duration time_;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_TURN_BUDGET_H_
