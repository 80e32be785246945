// Runs schedules: simulate [--first-seed N] [--schedules N]. One that fails is named by its seed.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/slp/world.h"

int main(int argc, char** argv) {
  using namespace sluice::slp;
  uint64_t first = 1, count = 1000;
  for (int i = 1; i < argc; i += 2) {
    bool known = i + 1 < argc && (std::strcmp(argv[i], "--first-seed") == 0 ||
                                  std::strcmp(argv[i], "--schedules") == 0);
    if (!known) {
      std::fprintf(stderr, "usage: simulate [--first-seed N] [--schedules N]\n");
      return 2;
    }
    (std::strcmp(argv[i], "--schedules") == 0 ? count : first) =
        std::strtoull(argv[i + 1], nullptr, 10);
  }
  Summary all;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    try {
      Summary one = run(plan_of(seed));
      all.delivered += one.delivered;
      all.transfers_ok += one.transfers_ok;
      all.transfers_failed += one.transfers_failed;
      all.frames += one.frames;
      all.resent += one.resent;
      all.ended_sessions += one.ended_sessions;
      all.sessions += one.sessions;
      all.keys += one.keys;
      all.forged += one.forged;
      all.repeated += one.repeated;
      all.digest = sluice::sim::mix(all.digest ^ one.digest);
    } catch (const Wrong& wrong) {
      Plan plan = plan_of(seed);
      if (plan.sealed)
        std::printf("sealed, epochs of %d bits, attacks %llu\n", plan.epoch_bits,
                    static_cast<unsigned long long>(plan.attacks));
      std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), wrong.what());
      return 1;
    }
  }
  std::printf(
      "%llu schedules, %llu sessions (%llu ended), %llu messages, %llu transfers and %llu that "
      "failed, %llu frames, %llu resent, %llu keys, %llu forged and %llu repeated dropped, digest "
      "%016llx\n",
      static_cast<unsigned long long>(count), static_cast<unsigned long long>(all.sessions),
      static_cast<unsigned long long>(all.ended_sessions),
      static_cast<unsigned long long>(all.delivered),
      static_cast<unsigned long long>(all.transfers_ok),
      static_cast<unsigned long long>(all.transfers_failed),
      static_cast<unsigned long long>(all.frames), static_cast<unsigned long long>(all.resent),
      static_cast<unsigned long long>(all.keys), static_cast<unsigned long long>(all.forged),
      static_cast<unsigned long long>(all.repeated), static_cast<unsigned long long>(all.digest));
  return 0;
}
