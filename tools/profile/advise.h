// Advises on a recording: replays it under each profile, in interleaved rounds, and names one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sluice/base/result.h>

#include "tools/profile/choose.h"
#include "tools/profile/plan.h"
#include "tools/profile/replay.h"

namespace sluice::tools::profile {

struct AdviseOptions {
  uint32_t rounds = 7;
  double seconds = 30;  // for the waiting profiles; as long again for thresholds
};

// One question: some ways, what they took, and which one is named.
struct Answer {
  std::string about;  // "waiting", "shm_eager_bytes"
  std::vector<Way> ways;
  std::vector<Rounds> rounds;
  Choice choice;
  std::string not_asked;  // why; empty: it was
};

struct Advice {
  Answer waiting;
  std::vector<Answer> thresholds;
  std::vector<std::string> remarks;
  // What to set in the environment; empty: what a program has without settings.
  std::vector<std::string> settings() const;
};

// How much of a recording is played in a round.
uint64_t part_ns(const AdviseOptions& options);
// `recorded`: the thresholds of the program. Errors: those of play().
Result<Advice> advise(const Plan& plan, const Tuning& recorded, const AdviseOptions& options);

}  // namespace sluice::tools::profile
