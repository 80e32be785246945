// Replays of made-up plans: they come to an end under each way to wait, or say why they did not,
// and leave nothing behind.
#include "tools/profile/replay.h"

#include <catch2/catch.hpp>

#include <sys/wait.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "tests/support/audit.h"

namespace sluice::tools::profile {
namespace {

Way way(Waiting waiting) { return {.name = "test", .setting = "", .waiting = waiting}; }

// Each of `players` sends to the next one in a ring, and receives from the one before.
Plan ring(uint32_t players, Path path) {
  Plan plan;
  for (uint32_t i = 0; i < players; ++i)
    plan.lines.push_back({.players = {i, (i + 1) % players}, .path = path});
  for (uint32_t i = 0; i < players; ++i) {
    Player player{.name = "player " + std::to_string(i)};
    player.usable_cpus[0] = ~uint64_t{0};
    for (uint64_t bytes : {0, 1, 4096, 70'000, 3'000'000}) {
      player.steps.push_back({.computed_ns = 1000, .bytes = bytes, .line = i, .send = true});
      player.steps.push_back({.bytes = bytes, .line = (i + players - 1) % players});
    }
    plan.players.push_back(player);
  }
  return plan;
}

bool no_child_is_left() { return ::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD; }

TEST_CASE("a plan is played to its end over shared memory and TCP, in each way to wait") {
  test::NothingLeftBehind audit;
  const auto path = GENERATE(Path::kShm, Path::kTcp);
  for (Waiting waiting : {Waiting::kAdaptive, Waiting::kSpin, Waiting::kSleep}) {
    auto played = play(ring(3, path), way(waiting), 2, std::chrono::seconds(60));
    REQUIRE(played.ok());
    CHECK(played->seconds > 0);
    CHECK(played->cpu_seconds > 0);
  }
  CHECK(no_child_is_left());
}

TEST_CASE("a replay that does not end is ended, with the reason") {
  Plan plan = ring(2, Path::kShm);
  plan.players[1].steps.clear();
  auto played = play(plan, way(Waiting::kSleep), 1, std::chrono::milliseconds(500));
  REQUIRE_FALSE(played.ok());
  CHECK(played.code() == Code::kTimedOut);
  CHECK(no_child_is_left());
}

}  // namespace
}  // namespace sluice::tools::profile
