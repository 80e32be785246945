// The demo command as its user sees it: every mode on every path, figures, refusals.
#include <signal.h>

#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <utility>

#include "tests/demo/command.h"

namespace sluice::test {
namespace {

constexpr uint64_t kTinyFloats = 138375;  // the sum of 32 sizes, each rounded up

void check_spread(const nlohmann::json& spread) {
  CHECK(spread.at("min").get<double>() > 0);
  CHECK(spread.at("min").get<double>() <= spread.at("median").get<double>());
  CHECK(spread.at("median").get<double>() <= spread.at("max").get<double>());
}

void check_entry(const nlohmann::json& entry, int workers, int servers, int steps) {
  INFO(entry.dump());
  CHECK(entry.at("verified") == true);
  CHECK(entry.at("workers") == workers);
  CHECK(entry.at("servers") == servers);
  CHECK(entry.at("steps") == steps);
  CHECK(entry.at("restarts") == 0);
  check_spread(entry.at("step_seconds"));
  check_spread(entry.at("pull_seconds"));
  CHECK(entry.at("pull_seconds").at("median").get<double>() <
        entry.at("step_seconds").at("max").get<double>());
  CHECK(entry.at("bytes_per_step") == 2 * kTinyFloats * 4 * static_cast<uint64_t>(workers));
  CHECK(entry.at("bytes_per_second").get<double>() > 0);
  CHECK(entry.at("cpu_seconds_per_gb").get<double>() > 0);
  CHECK(entry.at("ratio_to_grpc").get<double>() > 0);
  const std::string mode = entry.at("mode");
  const std::string path = entry.at("path");
  if (mode.rfind("grpc", 0) == 0) {
    CHECK(entry.at("copied_bytes_per_byte").is_null());
    return;
  }
  const double copies = entry.at("copied_bytes_per_byte");
  if (mode == "zerocopy" && path == "shm") CHECK(copies == 0);
  // A bounce buffer shared by all readers, one for each reader, and both for each gradient.
  const double bounces = (1.0 + 3.0 * workers) / (2.0 * workers);
  if (mode == "onecopy" && path == "shm") CHECK(copies == Approx(bounces));
  // Two copies by the kernels; more where small tensors ride in a control message.
  if (path == "tcp") CHECK(copies >= 2);
  if (mode == "onecopy" && path == "tcp") CHECK(copies >= 2 + bounces);
}

void check_all_modes(int workers, int servers = 1, const std::vector<std::string>& further = {}) {
  DemoCommand command;
  const int steps = 4;
  std::vector<std::string> arguments = {"--model",   "tiny",
                                        "--steps",   std::to_string(steps),
                                        "--workers", std::to_string(workers),
                                        "--servers", std::to_string(servers)};
  arguments.insert(arguments.end(), further.begin(), further.end());
  CommandOutcome outcome = command.run(command.with_json(arguments));
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const nlohmann::json document = command.read_json();
  CHECK(document.at("schema") == "sluice.demo/1");
  CHECK(document.at("model") == "tiny");
  CHECK(document.at("bytes_of_servers").size() == static_cast<size_t>(servers));
  uint64_t bytes = 0;
  for (const nlohmann::json& part : document.at("bytes_of_servers")) bytes += part.get<uint64_t>();
  CHECK(bytes == kTinyFloats * 4);
  std::set<std::string> seen;
  for (const nlohmann::json& entry : document.at("results")) {
    check_entry(entry, workers, servers, steps);
    const std::string mode = entry.at("mode");
    const std::string path = entry.at("path");
    seen.insert(path + " " + mode);
    CHECK(outcome.out.find(mode) != std::string::npos);
  }
  std::set<std::string> expected;
  for (const char* path : {"shm", "rdma", "tcp"}) {
    for (const char* mode :
         {"zerocopy", "onecopy", "grpc-over-sluice", "grpc-unary", "grpc-expert"})
      expected.insert(std::string(path) + " " + mode);
  }
  // What this machine has not is told, not left out.
  for (const nlohmann::json& path : document.at("unavailable")) {
    CHECK(path.at("path") == "rdma");
    CHECK(path.at("reason").get<std::string>().find("RDMA") != std::string::npos);
    CHECK(outcome.out.find("rdma not available: " + path.at("reason").get<std::string>()) !=
          std::string::npos);
    std::erase_if(expected, [](const std::string& name) { return name.rfind("rdma", 0) == 0; });
  }
  CHECK(seen == expected);
  CHECK(outcome.err.empty());  // no progress bar where stderr is no terminal
}

TEST_CASE("one worker runs every mode on every path, and all bytes are verified") {
  check_all_modes(1);
}

TEST_CASE("three workers run every mode on every path, and all bytes are verified") {
  check_all_modes(3);
}

TEST_CASE("as many servers as workers run every mode on every path, and all bytes are verified") {
  check_all_modes(2, 2);
}

TEST_CASE(
    "three servers have the pieces of what is too large for one, and all bytes are verified") {
  check_all_modes(2, 3, {"--split"});
}

TEST_CASE("from a plan of its graph the job moves the same bytes, and receipts prove the views") {
  const auto [workers, servers] =
      GENERATE(std::pair{1, 1}, std::pair{2, 1}, std::pair{2, 2}, std::pair{8, 8});
  DemoCommand command;
  CommandOutcome outcome = command.run(command.with_json(
      {"--model", "tiny", "--steps", "4", "--workers", std::to_string(workers), "--servers",
       std::to_string(servers), "--paths", "shm,tcp", "--modes", "zerocopy,graph"}));
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.exit_code == 0);
  uint64_t arena_by_hand = 0;
  const nlohmann::json document = command.read_json();
  REQUIRE(document.at("results").size() == 4);
  for (const nlohmann::json& entry : document.at("results")) {
    INFO(entry.dump());
    CHECK(entry.at("verified") == true);
    CHECK(entry.at("round_step_seconds").size() == 3);
    if (entry.at("mode") == "zerocopy") {
      arena_by_hand = entry.at("arena_bytes");
      continue;
    }
    const bool shm = entry.at("path") == "shm";
    // The greetings of workers, of 256 bytes each, are there at the same time, or one by one.
    CHECK(entry.at("arena_bytes").get<uint64_t>() <=
          arena_by_hand + 256 * static_cast<uint64_t>(2 * workers * servers));
    // Weights and gradients of 32 tensors, of each worker in each step.
    CHECK(entry.at("fetches") == 4 * 2 * 32 * workers);
    CHECK(entry.at("views") == (shm ? 4 * 2 * 32 * workers : 0));
    if (shm) CHECK(entry.at("copied_bytes_per_byte") == 0.0);
    CHECK(entry.at("ratio_to_by_hand").get<double>() > 0);
  }
}

TEST_CASE("a wrong byte is found in a job that runs from a plan") {
  const std::string where = GENERATE("weights", "gradient");
  DemoCommand command;
  CommandOutcome outcome =
      command.run(command.with_json({"--model", "tiny", "--steps", "1", "--corrupt", where,
                                     "--modes", "graph", "--paths", "shm,tcp", "--servers", "2"}));
  INFO(outcome.out << outcome.err);
  CHECK(outcome.exit_code == 4);
  for (const nlohmann::json& entry : command.read_json().at("results")) {
    CHECK(entry.at("corruption").get<std::string>().find(where) != std::string::npos);
    CHECK(entry.at("step_seconds").is_null());
  }
}

TEST_CASE("two servers share the bytes as whole tensors allow, or evenly where those are split") {
  for (const bool split : {false, true}) {
    std::vector<std::string> arguments = {"--model", "tiny",    "--steps",  "1",         "--paths",
                                          "shm",     "--modes", "zerocopy", "--servers", "2"};
    if (split) arguments.push_back("--split");
    DemoCommand command;
    REQUIRE(command.run(command.with_json(arguments)).exit_code == 0);
    const nlohmann::json bytes = command.read_json().at("bytes_of_servers");
    const double part =
        static_cast<double>(std::max(bytes.at(0).get<uint64_t>(), bytes.at(1).get<uint64_t>())) /
        (kTinyFloats * 4);
    CHECK(part == Approx(split ? 0.5 : 0.743).epsilon(0.01));
  }
}

TEST_CASE("rdma alone on a machine without it runs nothing, says why, and is no success") {
  DemoCommand command;
  CommandOutcome outcome =
      command.run(command.with_json({"--model", "tiny", "--steps", "1", "--paths", "rdma"}));
  const nlohmann::json document = command.read_json();
  const bool here = document.at("unavailable").empty();
  CHECK(outcome.exit_code == (here ? 0 : 77));
  CHECK(document.at("results").size() == (here ? 5u : 0u));
  if (!here) CHECK(outcome.out.find("rdma not available: ") != std::string::npos);
}

TEST_CASE("the best mode of plain gRPC of a path has ratio 1 to itself") {
  DemoCommand command;
  REQUIRE(command.run(command.with_json({"--model", "tiny", "--steps", "3", "--paths", "shm"}))
              .exit_code == 0);
  double best = 0;
  const nlohmann::json document = command.read_json();
  for (const nlohmann::json& entry : document.at("results")) {
    if (entry.at("mode") == "grpc-unary") CHECK(entry.at("ratio_to_grpc_unary") == 1.0);
    const std::string mode = entry.at("mode");
    if (mode == "grpc-unary" || mode == "grpc-expert")
      best = std::max<double>(best, entry.at("ratio_to_grpc"));
  }
  CHECK(best == 1.0);
}

TEST_CASE("without a gRPC mode there is no ratio") {
  DemoCommand command;
  CommandOutcome outcome = command.run(command.with_json(
      {"--model", "tiny", "--steps", "1", "--paths", "tcp", "--modes", "zerocopy"}));
  REQUIRE(outcome.exit_code == 0);
  const nlohmann::json document = command.read_json();
  REQUIRE(document.at("results").size() == 1);
  CHECK(document.at("results")[0].at("ratio_to_grpc").is_null());
  CHECK(document.at("results")[0].at("ratio_to_grpc_unary").is_null());
}

TEST_CASE("the stand-in for computing makes the step longer by at least its length") {
  DemoCommand command;
  CommandOutcome outcome =
      command.run(command.with_json({"--model", "tiny", "--steps", "1", "--paths", "shm", "--modes",
                                     "zerocopy", "--compute-us", "200000"}));
  REQUIRE(outcome.exit_code == 0);
  // Calibrated while other processes run: half of it is certain.
  CHECK(command.read_json().at("results")[0].at("step_seconds").at("min").get<double>() > 0.1);
}

TEST_CASE("a wrong byte is found in every mode on every path, and no figure is told") {
  const std::string where = GENERATE("weights", "gradient");
  const std::string servers = GENERATE("1", "2");
  DemoCommand command;
  CommandOutcome outcome = command.run(command.with_json(
      {"--model", "tiny", "--steps", "1", "--corrupt", where, "--servers", servers}));
  INFO(outcome.out << outcome.err);
  CHECK(outcome.exit_code == 4);
  const nlohmann::json document = command.read_json();
  const nlohmann::json results = document.at("results");
  REQUIRE(results.size() == (document.at("unavailable").empty() ? 15 : 10));
  for (const nlohmann::json& entry : results) {
    INFO(entry.dump());
    CHECK(entry.at("verified") == false);
    CHECK(entry.at("corruption").get<std::string>().find(where) != std::string::npos);
    CHECK(entry.at("step_seconds").is_null());
    CHECK(entry.at("ratio_to_grpc").is_null());
  }
}

TEST_CASE("a refused flag is told with its name, its value and an example") {
  struct Refusal {
    std::string flag, value, example;
  };
  const Refusal refusal =
      GENERATE(Refusal{"--steps", "0", "--steps 5"}, Refusal{"--steps", "many", "--steps 5"},
               Refusal{"--workers", "65", "--workers 2"}, Refusal{"--servers", "33", "--servers 2"},
               Refusal{"--servers", "0", "--servers 2"},
               Refusal{"--modes", "zerocopy,teleport",
                       "--modes zerocopy,onecopy,grpc-over-sluice,grpc-unary,"
                       "grpc-expert,grpc-stream,graph"},
               Refusal{"--modes", ",",
                       "--modes zerocopy,onecopy,grpc-over-sluice,grpc-unary,"
                       "grpc-expert,grpc-stream,graph"},
               Refusal{"--paths", "pigeon", "--paths shm,rdma,l2,tcp"},
               Refusal{"--model", "vgg19", "--model vgg16"},
               Refusal{"--json", "/nowhere/x.json", "--json demo.json"},
               Refusal{"--compute-us", "-1", "--compute-us 1000"},
               Refusal{"--timeout", "1.5", "--timeout 120"});
  DemoCommand command;
  CommandOutcome outcome = command.run({refusal.flag + "=" + refusal.value});
  INFO(outcome.err);
  CHECK(outcome.exit_code == 2);
  CHECK(outcome.out.empty());
  CHECK(outcome.err.find(refusal.flag) != std::string::npos);
  const size_t comma = refusal.value.find(',');
  const std::string part =
      comma == std::string::npos ? refusal.value : refusal.value.substr(comma + 1);
  CHECK(outcome.err.find(part) != std::string::npos);
  CHECK(outcome.err.find(refusal.example) != std::string::npos);
}

TEST_CASE("one server's tensors cannot be split") {
  DemoCommand command;
  CommandOutcome outcome = command.run({"--split", "--model", "tiny"});
  CHECK(outcome.exit_code == 2);
  CHECK(outcome.err.find("--servers 2 --split") != std::string::npos);
}

TEST_CASE("an unknown flag is a usage error") {
  DemoCommand command;
  CHECK(command.run({"--frobnicate"}).exit_code == 2);
}

TEST_CASE("a step that takes longer than the timeout fails the run and names the flag") {
  DemoCommand command;
  CommandOutcome outcome =
      command.run({"--model", "tiny", "--steps", "1", "--paths", "shm", "--modes", "zerocopy",
                   "--compute-us", "30000000", "--timeout", "1"});
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.out.find("--timeout") != std::string::npos);
}

TEST_CASE("an interrupt ends all processes") {
  const std::string mode = GENERATE("zerocopy", "grpc-over-sluice", "grpc-expert", "graph");
  const int signal = GENERATE(SIGINT, SIGTERM, SIGKILL);
  DemoCommand command;
  CommandOutcome outcome =
      command.run_and_signal({"--model", "tiny", "--steps", "1000000", "--paths", "shm", "--modes",
                              mode, "--workers", "2"},
                             signal);
  CHECK(outcome.exit_code == (signal == SIGKILL ? -1 : 1));
}

}  // namespace
}  // namespace sluice::test
