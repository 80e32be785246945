// A worker that is killed and restarted rejoins: the step is repeated for it, its
// gradients are counted once, and the weights stay right to the last bit.
#include <catch2/catch.hpp>
#include <string>

#include "tests/demo/command.h"

namespace sluice::test {
namespace {

void check_rejoin(const std::string& mode, const std::string& path, int workers, int seed,
                  int servers = 1) {
  INFO(mode << " on " << path << ", seed " << seed);
  DemoCommand command;
  CommandOutcome outcome = command.run(command.with_json(
      {"--model", "tiny", "--steps", "9", "--workers", std::to_string(workers), "--modes", mode,
       "--paths", path, "--kill-worker-at-step", "2", "--kill-seed", std::to_string(seed),
       "--timeout", "30", "--servers", std::to_string(servers)}));
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const nlohmann::json entry = command.read_json().at("results")[0];
  CHECK(entry.at("verified") == true);
  CHECK(entry.at("steps") == 9);
  CHECK(entry.at("restarts") == 3);  // once in each of three rounds
}

// A seed is a place to die (before, in or after the pull or the push) and a worker.
TEST_CASE("a killed worker rejoins, wherever in the step it died") {
  const std::string mode =
      GENERATE("zerocopy", "onecopy", "grpc-over-sluice", "grpc-unary", "grpc-expert");
  const std::string path = GENERATE("shm", "tcp");
  const int seed = GENERATE(range(0, 5));
  check_rejoin(mode, path, 1, seed);
}

TEST_CASE("a killed worker rejoins while another one waits for it") {
  const std::string mode =
      GENERATE("zerocopy", "onecopy", "grpc-over-sluice", "grpc-unary", "grpc-expert");
  const std::string path = GENERATE("shm", "tcp");
  const int seed = GENERATE(range(5, 10));
  check_rejoin(mode, path, 2, seed);
}

// With gRPC some servers have its gradients then, and average them, while others have not.
TEST_CASE("a killed worker rejoins several servers") {
  const std::string mode = GENERATE("zerocopy", "grpc-unary", "grpc-expert");
  const int seed = GENERATE(range(0, 5));
  check_rejoin(mode, "tcp", 1, seed, 3);
}

}  // namespace
}  // namespace sluice::test
