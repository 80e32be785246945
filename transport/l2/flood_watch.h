// Whether a port is flooded by frames of no connection, and how many of them should be dropped
// before the port reads them: by the kernel, or by a carrier whose sockets have no filter. Knows no
// port: it counts.
#ifndef SLUICE_L2_FLOOD_WATCH_H_
#define SLUICE_L2_FLOOD_WATCH_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

#include <sluice/base/clock.h>

namespace sluice::l2 {

class FloodWatch {
 public:
  // So many frames of strangers in kSpan are a flood. 10,000 peers that connect within 200 ms are
  // none.
  static constexpr uint64_t kFlood = 1024;
  // And so many of a flood are let through, which take up to a third of a processor if each is a
  // HELLO, which is answered. With fewer, newcomers among a flood that a port could take were not
  // heard within the time of their connect().
  static constexpr uint64_t kPass = 1024;
  static constexpr Duration kSpan = std::chrono::milliseconds(10);
  // Once frames are dropped, what comes is judged by so much time.
  static constexpr Duration kJudged = std::chrono::milliseconds(20);
  static constexpr uint32_t kFewestOneOf = 1024;  // at least one in so many passes

  void note_stranger() { ++strangers_; }
  // One of so many strangers' frames is to pass, a power of two; 1: all, without a guard.
  uint32_t keeps_one_of() const { return one_of_; }
  // After frames were handed out, and now and then without any. True: keeps_one_of() is another
  // now, and the caller tells the carrier.
  bool look(Instant now) {
    const Duration passed = std::max(now - since_, kShortest);
    if (one_of_ == 1 && strangers_ < kFlood) {
      if (passed >= kSpan) begin(now);
      return false;
    }
    if (one_of_ > 1 && passed < kJudged) return false;
    const auto in_a_span = static_cast<uint64_t>(strangers_ * one_of_ * (kSpan / kShortest) /
                                                 static_cast<uint64_t>(passed / kShortest));
    const uint32_t before = one_of_;
    uint32_t needed = 2;
    while (needed < kFewestOneOf && in_a_span > needed * kPass) needed *= 2;
    if (one_of_ > 1 && in_a_span < kFlood / 2)
      one_of_ = 1;
    else if (needed > one_of_)
      one_of_ = needed;
    else if (needed * 4 <= one_of_)  // chance alone makes a factor of two
      one_of_ /= 2;
    begin(now);
    return one_of_ != before;
  }
  // The carrier does not drop any.
  void give_up() { one_of_ = 1; }

 private:
  static constexpr Duration kShortest = std::chrono::microseconds(100);
  void begin(Instant now) {
    since_ = now;
    strangers_ = 0;
  }
  Instant since_{};
  uint64_t strangers_ = 0;
  uint32_t one_of_ = 1;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_FLOOD_WATCH_H_
