#include "tools/graph/graph_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sluice/base/result.h>
#include <sluice/graph/check.h>
#include <sluice/graph/cost.h>
#include <sluice/graph/graph.h>
#include <sluice/graph/pass.h>
#include <sluice/graph/plan.h>
#include <sluice/graph/text.h>

#include "tools/graph/job_graph.h"
#include "tools/graph/models.h"

namespace sluice::tools {
namespace {

namespace sg = ::sluice::graph;

struct GraphOptions {
  std::string action;
  std::string file;
  std::string costs;
  std::string model = "vgg16";
  uint32_t workers = 1;
  uint32_t servers = 1;
  uint32_t batch = 0;
  std::vector<uint32_t> scale = {1, 2, 4, 8, 16, 64, 256, 1024};
  double compute_us = 0;
  bool hosts = false;
  bool verify = false;
  bool json = false;
  bool instructions = false;
  bool apart = false;
  bool split = false;
};

int fail(std::string_view why) {
  fmt::print(stderr, "sluice graph: {}\n", why);
  return 1;
}

Result<std::string> read_file(const std::string& name) {
  auto wrong = [&](const char* why) {
    return Status(Code::kInvalidArgument, Scope::kOperation, "graph/command",
                  fmt::format("{} {}: name a file of JSON, or - for standard input", name, why));
  };
  std::ifstream file;
  if (name != "-") {
    file.open(name, std::ios::binary);
    if (!file) return wrong("cannot be opened");
  }
  std::istream& in = name == "-" ? std::cin : file;
  std::string text;
  std::vector<char> part(1 << 16);
  while (text.size() <= sg::kMostTextBytes) {
    in.read(part.data(), static_cast<std::streamsize>(part.size()));
    if (in.gcount() <= 0) break;
    text.append(part.data(), static_cast<size_t>(in.gcount()));
  }
  if (in.bad() || text.empty()) return wrong("has nothing to read");
  return text;
}

Result<sg::Costs> costs_of(const GraphOptions& options) {
  if (options.costs.empty()) return sg::usual_costs();
  SLUICE_TRY(std::string text, read_file(options.costs));
  return sg::read_costs(text);
}

sg::Graph graph_of_model(const GraphOptions& options, uint32_t workers, uint32_t servers) {
  networks::JobShape shape;
  shape.workers = workers;
  shape.servers = servers;
  shape.one_host = !options.hosts;
  shape.verify = options.verify;
  shape.compute_us = options.compute_us;
  const networks::Network network = networks::network_named(options.model);
  if (options.batch > 0) return networks::layer_graph(network, shape, options.batch);
  sg::Graph made =
      networks::job_graph(networks::tensors_of(network, servers, options.split), shape);
  made.name = options.model;
  return made;
}

Result<sg::Plan> checked_plan(sg::Graph graph, const GraphOptions& options) {
  SLUICE_TRY(sg::Plan plan, sg::make_plan(std::move(graph), {.share_memory = !options.apart}));
  const std::string problem = sg::problem_of(plan);
  if (problem.empty()) return plan;
  return Status(Code::kInternal, Scope::kOperation, "graph/command",
                "the plan is wrong, which is a bug of sluice: " + problem);
}

Result<sg::Plan> plan_of_file(const GraphOptions& options) {
  SLUICE_TRY(std::string text, read_file(options.file));
  SLUICE_TRY(sg::Graph graph, sg::read_graph(text));
  return checked_plan(std::move(graph), options);
}

Status print_plan(const GraphOptions& options) {
  SLUICE_TRY(sg::Plan plan, plan_of_file(options));
  if (options.json) {
    fmt::print("{}", sg::to_json(plan));
    return Status();
  }
  SLUICE_TRY(sg::Costs costs, costs_of(options));
  SLUICE_TRY(sg::Estimate found, sg::estimate(plan, costs));
  fmt::print(
      "{}\nestimated step: {:.3f} ms; {:.1f} MiB between hosts; the busiest host computes "
      "{:.0f} % of the time, the busiest NIC {:.0f} %\n",
      sg::to_text(plan, options.instructions), found.step_us / 1e3, found.moved_bytes / (1 << 20),
      found.busiest_host * 100, found.busiest_nic * 100);
  return Status();
}

Status check_file(const GraphOptions& options) {
  SLUICE_TRY(sg::Plan plan, plan_of_file(options));
  size_t views = 0, crossings = 0, ahead = 0, in_place = 0;
  for (const sg::Delivery& delivery : plan.deliveries) {
    views += delivery.route == sg::Route::kView;
    crossings += delivery.route == sg::Route::kCross;
    ahead += delivery.ahead;
  }
  for (const sg::TensorPlan& tensor : plan.tensors) in_place += tensor.in_place_of != sg::kNone;
  fmt::print(
      "{}: {} processes, {} nodes, {} edges; {} views, {} crossings, {} of them asked for a "
      "step ahead; {} tensors written in place. No tensor is overwritten while a reader is "
      "left, every edge has a source, no process waits for ever.\n",
      plan.graph.name.empty() ? options.file : plan.graph.name, plan.graph.processes.size(),
      plan.graph.nodes.size(), plan.graph.edges.size(), views, crossings, ahead, in_place);
  return Status();
}

// As the poster scales: as many servers as workers, here to 64, each process on a host of its own
// unless all share one.
Status print_scaling(const GraphOptions& options) {
  SLUICE_TRY(sg::Costs costs, costs_of(options));
  fmt::print("{:>8} {:>8} {:>12} {:>10} {:>11} {:>8} {:>10} {:>10}\n", "workers", "servers",
             "step ms", "speed-up", "efficiency", "NIC %", "cores %", "MiB moved");
  double alone = 0;
  const size_t most =
      options.split ? 64 : networks::tensors_of(networks::network_named(options.model), 1).size();
  for (uint32_t workers : options.scale) {
    const uint32_t servers = options.servers > 1
                                 ? options.servers
                                 : static_cast<uint32_t>(std::min<size_t>({workers, most, 64}));
    SLUICE_TRY(sg::Plan plan, sg::make_plan(graph_of_model(options, workers, servers)));
    SLUICE_TRY(sg::Estimate found, sg::estimate(plan, costs));
    if (alone == 0) alone = found.step_us / workers;
    const double speed_up = alone * workers / found.step_us;
    fmt::print("{:>8} {:>8} {:>12.3f} {:>10.2f} {:>10.1f}% {:>8.0f} {:>10.0f} {:>10.1f}\n", workers,
               servers, found.step_us / 1e3, speed_up, 100 * speed_up / workers,
               found.busiest_nic * 100, found.busiest_host * 100, found.moved_bytes / (1 << 20));
  }
  return Status();
}

// The help of an option begins with the actions that have it. Another action would ignore it: `make
// alexnet` would print the default network.
bool has_option(std::string_view action, const std::string& help) {
  const std::string actions = ", " + help.substr(0, help.find(':')) + ",";
  return actions.find(fmt::format(", {},", action)) != std::string::npos;
}

void refuse_options_of_others(const CLI::App& command, const std::string& action) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || name == "ACTION") continue;
    if (has_option(action, option->get_description())) continue;
    throw CLI::ValidationError(
        name, fmt::format("'{}' does not use it; it is for {}", action, option->get_description()));
  }
}

int run(const GraphOptions& options) {
  Status status;
  if (options.split && options.batch > 0)
    return fail("--split cuts what --layers needs whole: give one of them");
  if (options.action == "make") {
    fmt::print("{}", sg::to_json(graph_of_model(options, options.workers, options.servers)));
  } else if (options.action == "scale") {
    status = print_scaling(options);
  } else if (options.file.empty()) {
    throw CLI::ValidationError(
        "FILE", fmt::format("name the FILE of a graph, or - for standard input; example: sluice "
                            "graph {} graph.json",
                            options.action));
  } else {
    status = options.action == "plan" ? print_plan(options) : check_file(options);
  }
  return status.ok() ? 0 : fail(status.detail().empty() ? status.to_string() : status.detail());
}

void add_model_flags(CLI::App& command, GraphOptions& options) {
  std::vector<std::string> models(networks::kModels.begin(), networks::kModels.end());
  command.add_option("--model", options.model, "make, scale: the network whose job it is")
      ->check(CLI::IsMember(models))
      ->capture_default_str();
  command.add_option("--workers", options.workers, "make: worker processes")
      ->check(CLI::Range(1u, 2048u))
      ->capture_default_str();
  command
      .add_option("--servers", options.servers,
                  "make, scale: server processes; scale has as many as workers (64 at most) "
                  "unless more than 1 are asked for")
      ->check(CLI::Range(1u, 64u))
      ->capture_default_str();
  command
      .add_option("--layers", options.batch,
                  "make, scale: a node for each layer, forwards and backwards, with this many "
                  "samples; without it a worker's step is one node")
      ->check(CLI::Range(1u, 4096u));
  command
      .add_option("--compute-us", options.compute_us, "make, scale: a worker's computing, in us")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  command.add_flag("--hosts", options.hosts,
                   "make, scale: a host for each process, not one for all");
  command.add_flag("--split", options.split,
                   "make, scale: tensors larger than a server's share are cut into pieces");
  command.add_flag("--verify", options.verify, "make, scale: with nodes that verify every byte");
  command.add_option("--scale", options.scale, "scale: numbers of workers, with commas")
      ->delimiter(',')
      ->check(CLI::Range(1u, 2048u))
      ->capture_default_str();
}

}  // namespace

void add_graph_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "graph",
      "Plan a dataflow graph: which edges are views, which cross machines, where tensors "
      "are born and when their memory is used again");
  auto options = std::make_shared<GraphOptions>();
  command
      ->add_option("ACTION", options->action,
                   "plan FILE: print the plan; check FILE: prove it; make: print a model's graph; "
                   "scale: estimate the model's job with more and more workers")
      ->required()
      ->check(CLI::IsMember({"plan", "check", "make", "scale"}));
  command->add_option("FILE", options->file,
                      "plan, check: a graph of schema sluice.graph/1; - reads from stdin");
  command->add_flag("--json", options->json, "plan, make: print it as JSON, as make always does");
  command->add_flag("--instructions", options->instructions,
                    "plan: with what each process does in a step");
  command->add_flag("--apart", options->apart,
                    "plan, check: each tensor has memory of its own, for comparison");
  command->add_option("--costs", options->costs,
                      "plan, scale: costs of schema sluice.graph.costs/1; without it round "
                      "figures that nobody measured");
  add_model_flags(*command, *options);
  command->callback([command, options, &exit_code] {
    refuse_options_of_others(*command, options->action);
    exit_code = run(*options);
  });
}

}  // namespace sluice::tools
