// What a replay does, out of recordings: who sends what to whom, and what each computes before.
// Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <sluice/api/path_names.h>
#include <sluice/base/result.h>
#include <sluice/recording/format.h>

namespace sluice::tools::profile {

struct Step {
  uint64_t computed_ns = 0, paused_ns = 0;  // before it
  uint64_t bytes = 0;
  uint32_t line = 0;  // of Plan::lines
  bool send = false;
};

// One recorded context, or the peer of one that was not recorded.
struct Player {
  std::string name;
  bool recorded = true;
  std::array<uint64_t, 16> usable_cpus{};
  std::vector<Step> steps;
};

// A connection between two players.
struct Line {
  std::array<uint32_t, 2> players{};
  Path path = Path::kShm;
  std::string name;  // of its first end, as the path knows it
};

struct Plan {
  std::vector<Player> players;
  std::vector<Line> lines;
  uint64_t messages = 0;     // sent and received by players
  uint64_t bytes = 0;        // of them
  uint64_t unmatched = 0;    // messages of which only one end was recorded, though both ends were
  uint64_t span_ns = 0;      // how long the recorded part took
  uint64_t recorded_ns = 0;  // how long all of it took

  // By which the replay goes: shared memory or RDMA if all lines did, else TCP.
  Path path() const;
};

// The part of the recordings that is `most_ns` long, from a tenth of the messages on. What is
// replayed is complete: each message has a sender and a receiver. The peer of a connection that has
// one end in the recordings answers when it answered then. Errors: kInvalidArgument (nothing to
// replay; recordings of different machines, or twice the same).
Result<Plan> make_plan(const std::vector<recording::Recording>& recordings, uint64_t most_ns);

}  // namespace sluice::tools::profile
