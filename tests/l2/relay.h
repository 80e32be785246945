// A bad network between two cables: every frame that comes in at one is passed on at the
// other, or dropped, sent twice, held back behind others, or damaged, by a seeded generator.
#ifndef SLUICE_TESTS_L2_RELAY_H_
#define SLUICE_TESTS_L2_RELAY_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include <sluice/base/clock.h>

#include "tests/l2/wire.h"

namespace sluice::test {

// Of each frame, independently, in thousandths.
struct Harm {
  uint32_t drop = 0, duplicate = 0, hold = 0, corrupt = 0;
  // Frames longer than this vanish; 0: none do.
  size_t largest = 0;
};

class Relay {
 public:
  Relay(const std::string& one, const std::string& other, uint64_t seed);

  bool open() const { return ways_[0].in.open() && ways_[1].in.open(); }
  void set_harm(const Harm& harm) { harm_ = harm; }
  // Passes on what has come; returns how many frames.
  size_t turn(Instant now);

  struct Done {
    uint64_t passed = 0, dropped = 0, duplicated = 0, held = 0, corrupted = 0, too_large = 0,
             missed = 0;
  };
  Done done();
  // "seed 7: 1000 passed, ...": for whoever looks at a failure.
  std::string story();

 private:
  // At most so many later frames overtake one that is held back, or so much time passes.
  static constexpr uint32_t kMostOvertaking = 24;
  static constexpr Duration kLongestHold = std::chrono::milliseconds(2);
  struct Held {
    std::vector<uint8_t> frame;
    uint32_t behind;  // frames that go first
    Instant since;
  };
  struct Way {
    explicit Way(const std::string& interface) : in(interface) {}
    RawWire in;
    std::deque<Held> held;
  };
  uint64_t random();
  bool chance(uint32_t per_mille) { return random() % 1000 < per_mille; }
  void pass(RawWire& out, Way& way, std::span<const uint8_t> frame, Instant now);
  size_t let_go(RawWire& out, Way& way, Instant now, bool overtaken);

  Way ways_[2];
  uint64_t seed_, state_;
  Harm harm_;
  Done done_;
  std::vector<uint8_t> damaged_;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_L2_RELAY_H_
