// Plays a plan: a process for each player, which exchange messages of the recorded sizes and
// compute in between for the recorded times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/api/tuning.h>
#include <sluice/base/clock.h>
#include <sluice/base/result.h>

#include "tools/profile/plan.h"

namespace sluice::tools::profile {

// A profile: what a program could be told.
struct Way {
  std::string name;     // "latency"
  std::string setting;  // "SLUICE_WAITING=spin"
  Waiting waiting = Waiting::kAdaptive;
  Tuning tuning;
  std::string moderation;  // of SLUICE_RDMA_MODERATION; empty: off
};

struct Played {
  double seconds = 0;      // from the common start to the end of the last recorded player
  double cpu_seconds = 0;  // of all recorded players
};

// Plays it `repeats` times in a row. Requires: no context open, one thread. Errors: kTimedOut (not
// done after `limit`), kNoMemory, and those of the players.
Result<Played> play(const Plan& plan, const Way& way, uint32_t repeats, Duration limit);

}  // namespace sluice::tools::profile
