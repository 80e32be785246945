// What a seed lets happen.
#include "tests/slp/world.h"

namespace sluice::slp {

Plan plan_of(uint64_t seed) {
  sim::Random random(seed ^ 0x51D);
  Plan plan;
  plan.seed = seed;
  uint64_t worst = random.pick<uint64_t>({0, 1, 1, 5, 5, 20, 40});
  for (Fate& fate : plan.fate) {
    fate.delay = random.pick<uint64_t>({1, 5, 20, 100, 2000}) * kMicrosecond;
    fate.lost = random.percent(70) ? random.below(worst + 1) : 0;
    fate.twice = random.percent(40) ? random.below(20) : 0;
    fate.late = random.percent(50) ? random.below(60) : 0;
    fate.most_late = random.pick<uint64_t>({1, 10, 100, 1000, 30'000}) * kMicrosecond;
    fate.damaged = random.percent(30) ? random.below(worst + 1) : 0;
    fate.marked = random.percent(20) ? random.below(60) : 0;
    fate.padded = random.percent(20) ? 50 : 0;
  }
  auto few = [&](uint64_t chance, uint64_t most) {
    return random.percent(chance) ? 1 + random.below(most) : 0;
  };
  plan.bursts = few(20, 3);
  plan.cuts = few(8, 2);
  plan.pauses = few(15, 2);
  plan.jumps = few(8, 2);
  plan.crashes = few(12, 2);
  plan.steps = random.between(2, 40);
  plan.span = random.pick<uint64_t>({1, 5, 20, 100}) * kMillisecond;
  plan.mtu[0] = plan.mtu[1] = random.pick<uint16_t>({1452, 1452, 1500, 4000, 9000, 65000});
  plan.payload_crc = random.percent(40);
  plan.stalls = random.percent(25);
  plan.cancels = random.percent(40);
  plan.pull_budget = random.pick<uint64_t>({1 << 20, 1 << 20, 64 << 10, 3000});
  // Last, so that seeds of before have the rest as it was.
  plan.sealed = random.percent(40);
  plan.epoch_bits = random.pick<uint8_t>({6, 6, 7, 9, SLP_EPOCH_BITS});
  plan.attacks = plan.sealed && random.percent(60) ? random.pick<uint64_t>({1, 5, 30}) : 0;
  // One end or both behind a tunnel.
  if (random.percent(30)) plan.mtu[random.below(2)] = random.pick<uint16_t>({1232, 1400, 1451});
  if (random.percent(10)) plan.mtu[0] = plan.mtu[1] = random.pick<uint16_t>({1232, 1400});
  return plan;
}

}  // namespace sluice::slp
