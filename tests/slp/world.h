// Two ends, a network that chance rules, virtual time. Everything follows from the seed.
#ifndef SLUICE_TESTS_SLP_WORLD_H_
#define SLUICE_TESTS_SLP_WORLD_H_

#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <set>

#include "kernel_compat/slp/slp.h"
#include "tests/sim/random.h"
#include "tests/slp/judge.h"

namespace sluice::slp {

constexpr uint64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond,
                   kSecond = 1000 * kMillisecond;

// What happens to frames of one direction while it lasts. Shares are percents.
struct Fate {
  uint64_t lost = 0, twice = 0, late = 0, damaged = 0, marked = 0, padded = 0;
  uint64_t delay = 10 * kMicrosecond, most_late = 0;
};

struct Plan {
  uint64_t seed = 1;
  Fate fate[2];         // of frames that leave end 0, end 1
  uint64_t bursts = 0;  // times in which everything of a direction is lost
  uint64_t cuts = 0;    // the same, for long
  uint64_t pauses = 0, jumps = 0, crashes = 0;
  uint64_t steps = 40;                // things that the two users do
  uint64_t span = 20 * kMillisecond;  // in which they do them
  uint16_t mtu[2] = {1452, 1452};     // of each end
  bool payload_crc = false;
  bool stalls = false, cancels = false;
  uint64_t pull_budget = 1 << 20;
  // Both have the secret of a toy cipher; of each hundred frames the attacker acts upon so many.
  bool sealed = false;
  uint8_t epoch_bits = SLP_EPOCH_BITS;
  uint64_t attacks = 0;
  // Fates of the first frames that end 0 (or 1) sends, instead of chance: 'd'eliver, 'l'ose,
  // 't'wice, 's'wap with the next.
  std::string first_fates;
  int first_fates_of = 0;
};
// A plan as the seed has it.
Plan plan_of(uint64_t seed);

struct Summary {
  uint64_t delivered = 0, transfers_ok = 0, transfers_failed = 0, sessions = 0, frames = 0,
           resent = 0, ended_sessions = 0;
  uint64_t keys = 0, forged = 0, repeated = 0;
  uint64_t digest = 0;  // of what was seen, in order
  uint64_t virtual_ns = 0;
};
// Throws Wrong.
Summary run(const Plan& plan);

}  // namespace sluice::slp

#endif  // SLUICE_TESTS_SLP_WORLD_H_
