// Ranks that are processes: one is killed in the middle of an allreduce.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include <catch2/catch.hpp>

#include <sluice/select/open.h>

#include "tests/collective/ranks.h"

namespace sluice::test {
namespace {

constexpr int kRanks = 3;
constexpr size_t kBytes = 800'000;

// Ends with 0 if the others' deaths were told as they should be, else with a number that says
// where.
int survive(int rank, const std::vector<std::string>& addresses, pid_t victim) {
  auto context = open_context();
  if (!context.ok()) return 1;
  auto group =
      Group::open(**context, {.rank = rank, .size = kRanks, .addresses = addresses}, soon());
  if (!group.ok()) return 2;
  Buffer data = (*context)->arena().allocate(kBytes).value();
  for (int round = 0;; ++round) {
    // The victim is killed while the others are between or in the middle of rounds.
    if (rank == 0 && round == 20) ::kill(victim, SIGKILL);
    auto done =
        (*group)->allreduce_and_wait(Region(data, 0, kBytes), float64, ReduceOp::kSum, soon());
    if (done.ok()) continue;
    const Status status = done.status();
    // kWrongState: another rank said so between two rounds.
    if (status != Code::kUnreachable && status != Code::kOutcomeUnknown &&
        status != Code::kWrongState) {
      std::fprintf(stderr, "rank %d: %s\n", rank, status.to_string().c_str());
      return 3;
    }
    if (status.detail().find("rank 1") == std::string_view::npos) {
      std::fprintf(stderr, "rank %d: %s\n", rank, status.to_string().c_str());
      return 4;
    }
    return (*group)->barrier_and_wait(soon()).code() == Code::kWrongState ? 0 : 5;
  }
}

}  // namespace

TEST_CASE("a process that is killed in an allreduce is named to all others") {
  const auto addresses = fresh_addresses(kRanks);
  pid_t victim = ::fork();
  REQUIRE(victim >= 0);
  if (victim == 0) std::_Exit(survive(1, addresses, 0));
  pid_t children[2];
  const int ranks[2] = {0, 2};
  for (int i = 0; i < 2; ++i) {
    children[i] = ::fork();
    REQUIRE(children[i] >= 0);
    if (children[i] == 0) std::_Exit(survive(ranks[i], addresses, victim));
  }
  int status = 0;
  for (pid_t child : children) {
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
  REQUIRE(::waitpid(victim, &status, 0) == victim);
  CHECK(WIFSIGNALED(status));
}

}  // namespace sluice::test
