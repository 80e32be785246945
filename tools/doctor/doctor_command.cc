#include "tools/doctor/doctor_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <sluice/allocator/machine_memory.h>
#include <sluice/base/settings.h>
#include <sluice/runtime/secret.h>
#include <sluice/select/open.h>
#include <sluice/sluice.h>
#include <sluice/tuning/tuning.h>
#include <sluice/verbs/moderation.h>

#include "tools/doctor/container_checks.h"
#include "tools/doctor/finding.h"
#include "tools/doctor/host_checks.h"
#include "tools/doctor/machine_checks.h"
#include "tools/doctor/path_checks.h"
#include "tools/info/machine.h"
#include "tools/version.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::json;

struct DoctorOptions {
  std::string host;
  std::vector<std::string> needed = {"shm", "tcp"};
  bool json = false;
};

const char* name_of(Severity severity) {
  switch (severity) {
    case Severity::kOk: return "ok";
    case Severity::kNote: return "note";
    case Severity::kProblem: return "problem";
  }
  return "";
}

Finding check_tuning() {
  Result<tuning::Tuned> tuned = tuning::read_tuning();
  if (!tuned.ok())
    return problem("tuning", tuned.status().to_string(), "unset SLUICE_TUNING, or mend it");
  if (tuned->file_state == "read" || tuned->file_state == "none" ||
      tuned->file_state == "not asked")
    return ok("tuning", "measurements: " + tuned->file_state);
  return problem(
      "tuning",
      fmt::format("the measurements in {} are not used: {}", tuned->file, tuned->file_state),
      "`sluice tune` measures anew");
}

Findings check_settings() {
  Findings found = {check_tuning()};
  if (const auto asked = setting_text("SLUICE_RDMA_MODERATION");
      asked && !verbs::moderation_wish(*asked)) {
    found.push_back(
        problem("moderation",
                fmt::format("SLUICE_RDMA_MODERATION is ignored: '{}' is neither auto nor like 16/8",
                            *asked),
                "unset it, or set it to auto"));
  }
  if (const auto secret = Secret::chosen(""); !secret.ok()) {
    found.push_back(problem("secret", std::string(secret.status().detail()),
                            "give it a file of at least 16 bytes that is yours alone, or unset " +
                                std::string(kSecretFileVariable)));
  } else if (secret_is_set("")) {
    found.push_back(
        note("secret",
             std::string(kSecretFileVariable) +
                 " is set: programs take shm, and l2:// and l2://udp/ encrypted; rdma, kmod and "
                 "tcp refuse (rdma and tcp not if their options have allow_unsealed)",
             "nothing, if that is meant; else unset it"));
  }
  return found;
}

void append(Findings& to, Findings&& more) { to.insert(to.end(), more.begin(), more.end()); }

bool has_problem(const Findings& findings, const char* check) {
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& each) {
    return each.severity == Severity::kProblem && each.check == check;
  });
}

Findings examine(const DoctorOptions& options) {
  Findings found = check_settings();
  const std::optional<std::string> asked = setting_text("SLUICE_ARENA_LIMIT");
  const auto limit = default_arena_limit(asked ? asked->c_str() : nullptr, machine_memory_bytes());
  append(found, check_container_limits(limit.ok() ? *limit : 0));
  if (has_problem(found, "file-size")) {  // a context could end this process
    append(found, check_machine(limit.ok() ? *limit : 0));
    found.push_back(problem("context", "no path was tried: opening a context could end doctor",
                            "mend file-size, then run it again"));
    return found;
  }
  // Without a context nothing else can be tried.
  ContextOptions usual;
  usual.tuning = Tuning();
  Result<std::unique_ptr<Context>> context = open_context(usual);
  if (!context.ok()) {
    append(found, check_machine(0));
    found.push_back(problem("context", "open_context() fails: " + context.status().to_string(),
                            "the first problem to mend"));
    return found;
  }
  append(found, check_machine((*context)->arena().statistics().limit_bytes));
  append(found, check_paths(options.needed));
  if (!options.host.empty()) append(found, check_host(options.host));
  return found;
}

size_t count(const Findings& findings, Severity severity) {
  return static_cast<size_t>(
      std::count_if(findings.begin(), findings.end(),
                    [&](const Finding& each) { return each.severity == severity; }));
}

void print_json(const Findings& findings) {
  Json out = {{"schema", "sluice.doctor/1"},
              {"version", kVersion},
              {"problems", count(findings, Severity::kProblem)},
              {"findings", Json::array()}};
  for (const Finding& each : findings) {
    out["findings"].push_back({{"check", each.check},
                               {"severity", name_of(each.severity)},
                               {"text", each.text},
                               {"remedy", each.remedy}});
  }
  fmt::print("{}\n", out.dump(1, ' ', false, Json::error_handler_t::replace));
}

void print(const Findings& findings) {
  for (const Finding& each : findings) {
    fmt::print("{:<8} {:<11} {}\n", name_of(each.severity), each.check, each.text);
    if (!each.remedy.empty()) fmt::print("{:<8} {:<11} do: {}\n", "", "", each.remedy);
  }
  const size_t problems = count(findings, Severity::kProblem),
               notes = count(findings, Severity::kNote);
  fmt::print("{} problem{}, {} note{}, {} checks passed\n", problems, problems == 1 ? "" : "s",
             notes, notes == 1 ? "" : "s", count(findings, Severity::kOk));
}

int run(const DoctorOptions& options) {
  const double stolen_before = steal_seconds();
  const Instant begun = now();
  Findings findings = examine(options);
  findings.push_back(
      check_load_since(stolen_before, std::chrono::duration<double>(now() - begun).count()));
  options.json ? print_json(findings) : print(findings);
  return count(findings, Severity::kProblem) == 0 ? 0 : 1;
}

}  // namespace

void add_doctor_command(CLI::App& app, int& exit_code) {
  CLI::App* doctor = app.add_subcommand(
      "doctor",
      "try each path on this machine, and the way to HOST: what is wrong, and what to do");
  auto options = std::make_shared<DoctorOptions>();
  doctor->add_option("HOST", options->host,
                     "a machine, or HOST:PORT if a program that uses sluice listens there");
  doctor
      ->add_option("--need", options->needed,
                   "paths that have to work: " + fmt::format("{}", fmt::join(path_names(), ",")) +
                       " (shm,tcp)")
      ->delimiter(',')
      ->allow_extra_args(false)  // a HOST may follow
      ->type_name("PATH,...")
      ->check(CLI::IsMember(path_names()));
  doctor->add_flag("--json", options->json, "print JSON");
  doctor->footer("exit codes: 0 no problem, 1 a problem, 2 the command line is wrong");
  doctor->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace sluice::tools
