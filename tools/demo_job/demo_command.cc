#include "tools/demo_job/demo_command.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tools/demo_job/job.h"
#include "tools/demo_job/run.h"

namespace sluice::tools {
namespace {

using demo::JobOptions;

// The flags as they were typed; lists are split here so that an error can name its part.
struct Flags {
  JobOptions options;
  std::string modes = "zerocopy,onecopy,grpc-over-sluice,grpc-unary,grpc-expert";
  std::string paths = "shm,rdma,tcp";
  std::string corrupt;
};

[[noreturn]] void refuse(const std::string& flag, const std::string& value, const std::string& why,
                         const std::string& example) {
  throw CLI::ValidationError(flag,
                             "'" + value + "' " + why + "; for example " + flag + " " + example);
}

CLI::Validator number(const std::string& flag, int64_t least, int64_t most,
                      const std::string& example) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        size_t used = 0;
        int64_t value = 0;
        try {
          value = std::stoll(text, &used);
        } catch (const std::exception&) {
          used = 0;
        }
        if (used == text.size() && used > 0 && value >= least && value <= most) return {};
        return "'" + text + "' is not a number from " + std::to_string(least) + " to " +
               std::to_string(most) + "; for example " + flag + " " + example;
      },
      "NUMBER");
}

template <typename T, size_t N>
std::vector<T> parse_list(const std::string& flag, const std::string& text,
                          const std::array<T, N>& known, const std::string& example) {
  std::vector<T> list;
  for (const std::string& part : CLI::detail::split(text, ',')) {
    auto found =
        std::find_if(known.begin(), known.end(), [&](T value) { return to_string(value) == part; });
    if (found == known.end()) refuse(flag, part, "is none of " + example, example);
    if (std::find(list.begin(), list.end(), *found) == list.end()) list.push_back(*found);
  }
  if (list.empty()) refuse(flag, text, "is empty", example);
  return list;
}

void check(Flags& flags) {
  flags.options.modes =
      parse_list("--modes", flags.modes, demo::kModes,
                 "zerocopy,onecopy,grpc-over-sluice,grpc-unary,grpc-expert,grpc-stream,graph");
  flags.options.routes = parse_list("--paths", flags.paths, demo::kRoutes, "shm,rdma,l2,tcp");
  if (flags.options.model != "vgg16" && flags.options.model != "tiny") {
    refuse("--model", flags.options.model, "is neither vgg16 nor tiny", "vgg16");
  }
  if (flags.options.spreading.cut && flags.options.spreading.servers == 1) {
    throw CLI::ValidationError(
        "--split", "with one server there is nothing to split; for example --servers 2 --split");
  }
  if (flags.corrupt == "weights")
    flags.options.corruption = demo::Corruption::kWeights;
  else if (flags.corrupt == "gradient")
    flags.options.corruption = demo::Corruption::kGradient;
  else if (!flags.corrupt.empty())
    refuse("--corrupt", flags.corrupt, "is neither weights nor gradient", "weights");
  const std::string& file = flags.options.json_file;
  if (!file.empty() && !std::ofstream(file, std::ios::app))
    refuse("--json", file, "cannot be written", "demo.json");
}

}  // namespace

void add_demo_command(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  JobOptions& options = flags->options;
  CLI::App* command = app.add_subcommand("demo",
                                         "A parameter server and its workers exchange a model's "
                                         "weights and gradients, beside gRPC, every byte verified");
  command->add_option("--steps", options.steps, "Measured steps of each mode on each path")
      ->check(number("--steps", 1, 1'000'000, "5"))
      ->capture_default_str();
  command->add_option("--workers", options.workers, "Worker processes")
      ->check(number("--workers", 1, demo::kMostWorkers, "2"))
      ->capture_default_str();
  command
      ->add_option("--servers", options.spreading.servers,
                   "Server processes, each with a part of the tensors")
      ->check(number("--servers", 1, demo::kMostServers, "2"))
      ->capture_default_str();
  command->add_flag("--split", options.spreading.cut,
                    "With --servers: cut tensors that are larger than a server's share");
  command
      ->add_option("--model", options.model,
                   "vgg16 (32 tensors, 528 MiB) or tiny (a thousandth of it)")
      ->capture_default_str();
  command
      ->add_option("--modes", flags->modes,
                   "Of zerocopy, onecopy, grpc-over-sluice (grpc-unary with one changed line at "
                   "each end), grpc-unary, grpc-expert (callback API, slices of the program's "
                   "own memory), grpc-stream, and graph: as zerocopy, from a plan of the job's "
                   "dataflow graph")
      ->capture_default_str();
  command
      ->add_option("--paths", flags->paths,
                   "Of shm, rdma, l2, tcp; what this machine has not is told, with the reason")
      ->capture_default_str();
  command->add_option("--l2", options.l2_interfaces,
                      "For path l2: the interface of the server and, after a comma, another of the "
                      "workers, e.g. lo; without it root gets a cable between two namespaces");
  command->add_option("--json", options.json_file, "Write the figures to this file as well");
  command->add_option("--compute-us", options.compute_us, "Busy work between pull and push, in us")
      ->check(number("--compute-us", 0, 60'000'000, "1000"))
      ->capture_default_str();
  command
      ->add_option("--timeout", options.timeout_seconds,
                   "Longest time of one step, its verification included, in s")
      ->check(number("--timeout", 1, 86'400, "120"))
      ->capture_default_str();
  command->add_option("--kill-worker-at-step", options.kill_worker_at_step)
      ->check(number("--kill-worker-at-step", 1, 1'000'000, "2"))
      ->group("");
  command->add_option("--kill-seed", options.kill_seed)
      ->check(number("--kill-seed", 0, 1'000'000, "7"))
      ->group("");
  command->add_option("--corrupt", flags->corrupt)->group("");
  command->callback([flags, &exit_code] {
    check(*flags);
    exit_code = demo::run_job(flags->options);
  });
}

}  // namespace sluice::tools
