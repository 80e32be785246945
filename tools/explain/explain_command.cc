#include "tools/explain/explain_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <sluice/tuning/knobs.h>

#include "tools/explain/catalogue.h"
#include "tools/info/settings.h"
#include "tools/perf/flags/nearest.h"

namespace sluice::tools {
namespace {

constexpr int kExitUsage = 2;

void print(const Entry& entry) {
  fmt::print("{}\n  means   {}\n  causes  {}\n  do      {}\n", entry.name, entry.meaning,
             entry.causes, entry.remedy);
}

int explain(const std::string& name) {
  if (const Entry* entry = find_entry(name)) {
    print(*entry);
    return 0;
  }
  if (const Setting* setting = find_setting(name)) {
    fmt::print(
        "{}\n  means   {}\n  causes  The environment; without it: {}.\n  do      Set it to {}{}.\n",
        name, setting->meaning, setting->otherwise, setting->values,
        setting->in_code.empty() ? "" : fmt::format("; in code: {}", setting->in_code));
    return 0;
  }
  if (const tuning::Knob* knob = tuning::find_knob(name)) {
    fmt::print(
        "{}\n  means   A threshold. {}.\n  causes  `sluice tune` measures it; without that it is "
        "built in.\n  do      See its value by `sluice info --explain`; set it by "
        "SLUICE_TUNING={}=VALUE, from {} to {}.\n",
        name, knob->what, name, tuning::value_text(*knob, knob->least),
        tuning::value_text(*knob, knob->most));
    return 0;
  }
  // A room: all of its counters. A struct of limits: all of them.
  int found = 0;
  for (const Entry& entry : catalogue()) {
    if (!entry.name.starts_with(name + ".") && !entry.name.starts_with(name + "::")) continue;
    print(entry);
    ++found;
  }
  if (found > 0) return 0;
  std::vector<std::string> names;
  for (const Entry& entry : catalogue()) names.emplace_back(entry.name);
  for (const Setting& setting : settings()) names.emplace_back(setting.name);
  for (const tuning::Knob& knob : tuning::knobs()) names.emplace_back(knob.name);
  const std::string meant = nearest(name, names);
  fmt::print(stderr,
             "sluice: explain: '{}' is not in the catalogue{}; `sluice explain` lists all names\n",
             name, meant.empty() ? "" : "; did you mean " + meant + "?");
  return kExitUsage;
}

}  // namespace

void add_explain_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "explain", "what a code, counter, limit or variable means, and what to do");
  auto name = std::make_shared<std::string>();
  command->add_option(
      "NAME", *name,
      "a code such as kTryAgain, a counter such as peer.refused_wants, a limit such as "
      "PeerLimits::wants, a variable such as SLUICE_LOG, a threshold such as spin_ns, or a room "
      "such as peer; "
      "without: all names");
  command->callback([name, &exit_code] {
    if (!name->empty()) {
      exit_code = explain(*name);
      return;
    }
    for (const Entry& entry : catalogue()) fmt::print("{:<34} {}\n", entry.name, entry.meaning);
  });
}

}  // namespace sluice::tools
