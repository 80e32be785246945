#include "tools/tune/tune_command.h"

#include <fmt/format.h>

#include <ctime>
#include <memory>
#include <optional>
#include <string>

#include <sluice/tuning/cache_file.h>
#include <sluice/tuning/machine.h>

#include "tools/tune/probe.h"
#include "tools/tune_system/tune_system_command.h"

namespace sluice::tools {
namespace {

struct TuneOptions {
  bool if_needed = false;
  bool dry_run = false;
};

std::string utc_now() {
  std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

int fail(const std::string& why) {
  fmt::print(stderr, "sluice tune: {}\n", why);
  return 1;
}

int run(const TuneOptions& options) {
  std::string machine = tuning::machine_key(), folder = tuning::cache_folder();
  if (folder.empty() && !options.dry_run) {
    return fail(
        "there is no place for the result: set SLUICE_CACHE_DIR, XDG_CACHE_HOME or HOME to an "
        "absolute path, or use --dry-run");
  }
  std::string path = folder.empty() ? "" : tuning::cache_path(folder, machine);
  if (options.if_needed && !path.empty()) {
    Result<std::optional<tuning::Record>> kept = tuning::read_record(path, machine);
    if (kept.ok() && kept->has_value()) {
      fmt::print("nothing to do: {} was measured {}\n", path, (*kept)->probed_at);
      return 0;
    }
    if (!kept.ok())
      fmt::print(stderr, "sluice tune: {} is not used: {}; measuring anew\n", path,
                 kept.status().to_string());
  }
  auto measured = probe();
  if (!measured.ok()) return fail(measured.status().to_string());
  tuning::Record record{.machine = machine, .probed_at = utc_now(), .knobs = *measured};
  for (size_t i = 0; i < tuning::kKnobCount; ++i) {
    const tuning::Knob& knob = tuning::knobs()[i];
    fmt::print("{:<25} {:<8} {}\n", knob.name, tuning::value_text(knob, record.knobs[i].value),
               record.knobs[i].measured);
  }
  if (options.dry_run) return 0;
  if (Status status = tuning::write_record(path, record); !status.ok())
    return fail(status.to_string());
  fmt::print("kept in {}\n", path);
  return 0;
}

}  // namespace

void add_tune_command(CLI::App& app, int& exit_code) {
  CLI::App* tune = app.add_subcommand("tune",
                                      "measure this machine for its thresholds (less than a "
                                      "second), for every program of this user");
  auto options = std::make_shared<TuneOptions>();
  tune->add_flag("--if-needed", options->if_needed,
                 "only where there is no measurement of this machine, or one that is refused");
  tune->add_flag("--dry-run", options->dry_run, "print what was found and keep nothing");
  tune->callback([options, &exit_code] { exit_code = run(*options); });
  add_tune_system_command(*tune);
}

}  // namespace sluice::tools
