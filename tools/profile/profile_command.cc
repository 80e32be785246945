#include "tools/profile/profile_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <sluice/base/result.h>
#include <sluice/recording/format.h>

#include "tools/profile/advise.h"
#include "tools/profile/plan.h"
#include "tools/profile/record.h"
#include "tools/profile/show.h"

namespace sluice::tools {
namespace {

namespace sp = profile;

struct ProfileOptions {
  std::vector<std::string> program;  // record
  std::string output;
  std::vector<std::string> files;  // advise, show
  sp::AdviseOptions advise;
  bool json = false;
};

int fail(const Status& status) {
  fmt::print(stderr, "sluice profile: {}\n",
             status.detail().empty() ? status.to_string() : status.detail());
  return 1;
}

Result<std::vector<recording::Recording>> read_all(const std::vector<std::string>& files) {
  std::vector<recording::Recording> all;
  for (const std::string& file : files) {
    SLUICE_TRY(recording::Recording each, recording::read_recording(file));
    all.push_back(std::move(each));
  }
  return all;
}

int run_show(const ProfileOptions& options) {
  auto recordings = read_all(options.files);
  if (!recordings.ok()) return fail(recordings.status());
  fmt::print("{}", sp::show(*recordings));
  return 0;
}

std::string answer_text(const sp::Answer& answer) {
  if (!answer.not_asked.empty())
    return fmt::format("{}: not tried: {}\n", answer.about, answer.not_asked);
  std::string out = fmt::format("{:<16}{:>12}{:>16}{:>12}{:>8}\n", answer.about, "time",
                                "processor time", "by fastest", "rounds");
  for (size_t i = 0; i < answer.rounds.size(); ++i) {
    const sp::Rounds& rounds = answer.rounds[i];
    out += fmt::format("  {:<14}{:>9.2f} ms{:>13.2f} ms{:>12.2f}{:>8}{}\n", rounds.name,
                       sp::median(rounds.seconds) * 1e3, sp::median(rounds.cpu_seconds) * 1e3,
                       answer.choice.time_by_fastest[i], rounds.seconds.size(),
                       i == answer.choice.index ? "  <-" : "");
  }
  return out;
}

nlohmann::json answer_json(const sp::Answer& answer) {
  nlohmann::json out = {{"about", answer.about}};
  if (!answer.not_asked.empty()) {
    out["not_tried"] = answer.not_asked;
    return out;
  }
  out["named"] = answer.ways[answer.choice.index].name;
  out["setting"] = answer.ways[answer.choice.index].setting;
  out["reason"] = answer.choice.reason;
  for (size_t i = 0; i < answer.rounds.size(); ++i) {
    out["ways"].push_back({{"name", answer.rounds[i].name},
                           {"seconds", answer.rounds[i].seconds},
                           {"cpu_seconds", answer.rounds[i].cpu_seconds},
                           {"time_by_fastest", answer.choice.time_by_fastest[i]},
                           {"dropped", answer.rounds[i].dropped}});
  }
  return out;
}

Tuning tuning_of(const recording::FileHeader& header) {
  Tuning tuning;
  tuning.shm_eager_bytes = std::max<uint64_t>(header.shm_eager_bytes, 64);
  tuning.shm_eager_sleeping_bytes = header.shm_eager_sleeping_bytes;
  tuning.tcp_eager_bytes = std::max<uint64_t>(header.tcp_eager_bytes, 64);
  tuning.spin_ns = header.spin_ns;
  return tuning;
}

void print_advice(const std::vector<recording::Recording>& recordings, const sp::Plan& plan,
                  const sp::Advice& advice) {
  fmt::print(
      "replayed {} messages of {} contexts over {}: {:.1f} ms of {:.1f} ms that were recorded\n",
      plan.messages / 2, plan.players.size(), to_string(plan.path()),
      static_cast<double>(plan.span_ns) * 1e-6, static_cast<double>(plan.recorded_ns) * 1e-6);
  for (const recording::Recording& each : recordings)
    for (const std::string& missing : each.missing)
      fmt::print("note: {}: {}\n", each.file, missing);
  for (const sp::Player& player : plan.players) {
    if (!player.recorded)
      fmt::print("note: {} was not recorded: it answers when it did then\n", player.name);
  }
  for (const std::string& remark : advice.remarks) fmt::print("note: {}\n", remark);
  fmt::print("\n{}", answer_text(advice.waiting));
  for (const sp::Answer& answer : advice.thresholds) fmt::print("{}", answer_text(answer));
  const std::vector<std::string> settings = advice.settings();
  fmt::print(
      "\nadvice: {}: {}\n", advice.waiting.ways[advice.waiting.choice.index].name,
      settings.empty() ? "set nothing" : "set " + fmt::format("{}", fmt::join(settings, " ")));
  fmt::print("reason: {}\n", advice.waiting.choice.reason);
  for (const sp::Answer& answer : advice.thresholds)
    if (answer.not_asked.empty())
      fmt::print("        {}: {}\n", answer.about, answer.choice.reason);
}

int run_advise(const ProfileOptions& options) {
  auto recordings = read_all(options.files);
  if (!recordings.ok()) return fail(recordings.status());
  auto plan = sp::make_plan(*recordings, sp::part_ns(options.advise));
  if (!plan.ok()) return fail(plan.status());
  auto advice = sp::advise(*plan, tuning_of((*recordings)[0].header), options.advise);
  if (!advice.ok()) return fail(advice.status());
  if (!options.json) {
    print_advice(*recordings, *plan, *advice);
    return 0;
  }
  nlohmann::json out = {{"schema", "sluice.profile/1"},
                        {"settings", (*advice).settings()},
                        {"answers", {answer_json((*advice).waiting)}},
                        {"remarks", (*advice).remarks}};
  for (const sp::Answer& answer : (*advice).thresholds)
    out["answers"].push_back(answer_json(answer));
  fmt::print("{}\n", out.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
  return 0;
}

}  // namespace

void add_profile_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "profile",
      "Record the messages of a program, and name the profile (waiting, thresholds) that suits it");
  command->require_subcommand(1);
  auto options = std::make_shared<ProfileOptions>();

  CLI::App* record = command->add_subcommand(
      "record", "Run a program that uses sluice, and record its messages: record -- PROGRAM ...");
  record->add_option("-o,--output", options->output,
                     "folder of the recordings, one for each process; without it a new one here");
  record->add_option("PROGRAM", options->program, "the program and its arguments, behind --")
      ->required();
  record->callback(
      [options, &exit_code] { exit_code = sp::record(options->program, options->output); });

  CLI::App* advise = command->add_subcommand(
      "advise", "Replay recordings under each profile, and name the best with the reason");
  advise->add_option("FILE", options->files, "the recordings of all processes of a run")
      ->required();
  advise->add_option("--rounds", options->advise.rounds, "rounds, in which profiles take turns")
      ->check(CLI::Range(1u, 101u))
      ->capture_default_str();
  advise
      ->add_option("--seconds", options->advise.seconds,
                   "about how long it plays for the ways to wait; as long again for thresholds")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  advise->add_flag("--json", options->json, "print the answers as JSON, with every round");
  advise->callback([options, &exit_code] { exit_code = run_advise(*options); });

  CLI::App* show = command->add_subcommand("show", "Print what recordings hold, as histograms");
  show->add_option("FILE", options->files, "recordings")->required();
  show->callback([options, &exit_code] { exit_code = run_show(*options); });
}

}  // namespace sluice::tools
