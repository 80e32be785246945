#include "tools/info/tuning_facts.h"

#include <fmt/format.h>

#include <string>

namespace sluice::tools {
namespace {

using Json = nlohmann::json;

std::string source_name(tuning::Source source) {
  return source == tuning::Source::kProbe         ? "probe"
         : source == tuning::Source::kEnvironment ? "environment"
                                                  : "default";
}

const char* unit_name(tuning::Unit unit) {
  switch (unit) {
    case tuning::Unit::kBytes: return "bytes";
    case tuning::Unit::kNanoseconds: return "ns";
    case tuning::Unit::kFrames: return "frames";
  }
  return "out of range";
}

std::string text(const Json& value) { return value.get<std::string>(); }

std::string origin(const Json& knob, const Json& tuning) {
  std::string source = text(knob["source"]), why = text(knob["why"]);
  if (source == "default") return "default";
  if (source == "environment") return "from " + why;
  return "probe of " + text(tuning["probed_at"]) + (why.empty() ? "" : ": " + why);
}

}  // namespace

Json tuning_facts(const tuning::Tuned& tuned) {
  Json out{{"machine", tuned.machine},
           {"file", tuned.file},
           {"file_state", tuned.file_state},
           {"probed_at", tuned.probed_at},
           {"thresholds", Json::array()}};
  for (size_t i = 0; i < tuning::kKnobCount; ++i) {
    const tuning::Knob& knob = tuning::knobs()[i];
    const tuning::Chosen& chosen = tuned.knobs[i];
    out["thresholds"].push_back({{"name", knob.name},
                                 {"value", chosen.value},
                                 {"text", tuning::value_text(knob, chosen.value)},
                                 {"unit", unit_name(knob.unit)},
                                 {"least", knob.least},
                                 {"most", knob.most},
                                 {"source", source_name(chosen.source)},
                                 {"why", chosen.why},
                                 {"what", knob.what}});
  }
  return out;
}

void print_tuning(const Json& tuning, bool everything) {
  if (!everything) return;
  for (const Json& knob : tuning["thresholds"]) {
    fmt::print("threshold  {:<26} {:<10} {}; {}\n", text(knob["name"]), text(knob["text"]),
               text(knob["what"]), origin(knob, tuning));
  }
  std::string file = text(tuning["file"]), state = text(tuning["file_state"]);
  if (state == "read") {
    fmt::print("thresholds of {}, kept in {}\n", text(tuning["machine"]), file);
  } else if (state == "none") {
    fmt::print("thresholds not measured here: `sluice tune` does it in less than a second{}\n",
               file.empty() ? " (with SLUICE_CACHE_DIR or HOME set)" : "");
  } else {
    fmt::print("thresholds of {}: {}; `sluice tune` measures anew\n",
               file.empty() ? "the file" : file, state);
  }
}

}  // namespace sluice::tools
