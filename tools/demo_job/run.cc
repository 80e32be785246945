#include "tools/demo_job/run.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <optional>

#include <sluice/l2/carrier/frames.h>
#include <sluice/verbs/devices.h>

#include "tools/demo_job/coordinator.h"
#include "tools/demo_job/report.h"
#include "tools/demo_job/wire.h"

namespace sluice::tools::demo {
namespace {

// Modes take turns, so that a machine that gets slower does so for all of them. Three
// rounds at least; more where that leaves five steps to each, as every turn has a
// start and a step that are not counted.
int rounds_for(int64_t steps) {
  return static_cast<int>(std::min<int64_t>(steps, std::clamp<int64_t>(steps / 5, 3, 21)));
}

// Which paths can run, where they meet, and what becomes of the others.
struct Ground {
  std::string rdma_host;
  std::string l2_server, l2_worker;  // interfaces
  std::optional<Wire> wire;          // where those are, if they are not this machine's
  std::vector<Missing> missing;

  std::vector<Route> usable(const JobOptions& options) {
    std::vector<Route> routes;
    for (Route route : options.routes) {
      bool there = route == Route::kRdma ? find_rdma()
                   : route == Route::kL2 ? find_l2(options.l2_interfaces)
                                         : true;
      if (there) routes.push_back(route);
    }
    return routes;
  }

  // The bridge finds Ethernet as sluice:// does: a neighbour by its address. Whoever runs on one
  // machine shares all addresses, so an interface that is named is not what would be taken.
  bool has(Route route, Mode mode) {
    if (route != Route::kL2 || mode != Mode::kGrpcOverSluice || wire) return true;
    missing.push_back({.route = route,
                       .mode = mode,
                       .reason = "over interfaces of this machine both ends have its addresses, "
                                 "and sluice:// finds no neighbour; leave --l2 out for a cable of "
                                 "the job's own"});
    return false;
  }

 private:
  bool find_l2(const std::string& interfaces) {
    Status status = l2::packet_sockets_allowed();
    if (status.ok() && !interfaces.empty()) {
      const size_t comma = std::min(interfaces.find(','), interfaces.size());
      l2_server = interfaces.substr(0, comma);
      l2_worker = comma < interfaces.size() ? interfaces.substr(comma + 1) : l2_server;
    } else if (status.ok()) {
      Result<Wire> made = Wire::make();
      if (made.ok()) wire.emplace(std::move(made).value());
      status = made.status();
      l2_server = Wire::kServerInterface;
      l2_worker = Wire::kWorkerInterface;
    }
    if (!status.ok())
      missing.push_back({.route = Route::kL2, .reason = std::string(status.detail())});
    return status.ok();
  }
  bool find_rdma() {
    const verbs::Survey survey = verbs::survey_devices();
    if (!survey.usable()) missing.push_back({.route = Route::kRdma, .reason = survey.obstacle});
    rdma_host = survey.first_address();
    return survey.usable();
  }
};

Visit plan_visit(const JobOptions& options, const Series& series, const Ground& ground,
                 int64_t steps) {
  Visit visit;
  visit.mode = series.mode;
  visit.route = series.route;
  if (series.route == Route::kRdma) visit.host = ground.rdma_host;
  if (series.route == Route::kL2) {
    if (!is_grpc(series.mode)) visit.host = ground.l2_server;
    visit.worker_interface = ground.l2_worker;
  }
  if (series.route == Route::kL2 && ground.wire) {
    if (is_grpc(series.mode)) visit.host = Wire::kServerHost;
    visit.server_network = ground.wire->server_network();
    visit.worker_network = ground.wire->worker_network();
  }
  visit.model = options.model;
  visit.spreading = options.spreading;
  visit.workers = options.workers;
  visit.steps = steps;
  visit.compute = std::chrono::microseconds(options.compute_us);
  visit.timeout = std::chrono::seconds(options.timeout_seconds);
  visit.chunk_bytes = series.chunk_bytes;
  visit.corruption = options.corruption;
  if (options.kill_worker_at_step > 0) {
    visit.kill_step = visit.warm_up_steps() + options.kill_worker_at_step - 1;
    visit.kill_point = static_cast<KillPoint>(options.kill_seed % kKillPoints);
    visit.kill_worker =
        static_cast<int>(options.kill_seed / kKillPoints % static_cast<uint64_t>(options.workers));
  }
  return visit;
}

void take_turn(const JobOptions& options, Series& series, const Ground& ground, int64_t steps,
               ProgressBar& bar) {
  const Visit visit = plan_visit(options, series, ground, steps);
  const std::string what =
      std::string(to_string(series.mode)) + " on " + std::string(to_string(series.route));
  VisitOutcome outcome = run_visit(visit, [&] { bar.step_done(what); });
  series.samples.insert(series.samples.end(), outcome.samples.begin(), outcome.samples.end());
  series.rounds.push_back(outcome.samples.size());
  series.failure = outcome.failure;
  series.corruption = outcome.corruption;
  series.restarts += outcome.restarts;
  if (outcome.chunk_bytes != 0) series.chunk_bytes = outcome.chunk_bytes;
}

int exit_code_of(const std::vector<Series>& all) {
  int code = kExitOk;
  for (const Series& series : all) {
    if (!series.corruption.empty()) return kExitCorrupt;
    if (!series.failure.empty()) code = kExitFailed;
  }
  return code;
}

}  // namespace

int run_job(const JobOptions& options) {
  std::vector<Series> all;
  Ground ground;
  for (Route route : ground.usable(options)) {
    for (Mode mode : options.modes) {
      if (ground.has(route, mode)) all.push_back({.mode = mode, .route = route});
    }
  }
  const int rounds = rounds_for(options.steps);
  {
    ProgressBar bar(options.steps * static_cast<int64_t>(all.size()));
    for (int round = 0; round < rounds; ++round) {
      const int64_t steps = options.steps * (round + 1) / rounds - options.steps * round / rounds;
      for (Series& series : all) {
        if (series.failure.empty() && series.corruption.empty())
          take_turn(options, series, ground, steps, bar);
        if (series.failure == "interrupted") return kExitFailed;
      }
    }
  }
  const std::vector<std::optional<Figures>> figures = figures_of(all, options);
  std::fputs(table(all, figures, ground.missing).c_str(), stdout);
  if (!options.json_file.empty()) {
    std::ofstream file(options.json_file, std::ios::trunc);
    file << json(all, figures, options, rounds, ground.missing);
    if (!file.flush()) {
      std::fprintf(stderr, "sluice demo: cannot write %s\n", options.json_file.c_str());
      return kExitFailed;
    }
  }
  return all.empty() ? kExitNothingToRunOn : exit_code_of(all);
}

}  // namespace sluice::tools::demo
