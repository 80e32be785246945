#include "tools/info/settings.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>

#include <sluice/tuning/tuning.h>

namespace sluice::tools {
namespace {

using Json = nlohmann::json;

const char* title(SettingOf of) {
  switch (of) {
    case SettingOf::kLibrary: return "Read by every program that uses sluice";
    case SettingOf::kCommand: return "Read by `sluice lab` and `sluice bench`, or set by them";
    case SettingOf::kTests: return "Read by the tests";
  }
  return "";
}

// Why a value has no effect, or is an error; empty: it is fine.
std::string refusal_of(const Setting& setting, const std::string& value) {
  if (setting.name != "SLUICE_TUNING") return unfit(setting, value);
  const Result<tuning::Tuned> tuned = tuning::read_tuning();
  return tuned.ok() ? "" : std::string(tuned.status().detail());
}

std::string text(const Json& value) { return value.get<std::string>(); }
std::string code(std::string_view words) { return words.empty() ? "" : fmt::format("`{}`", words); }

const char* name_of(SettingType type) {
  switch (type) {
    case SettingType::kFlag: return "switch";
    case SettingType::kWord: return "word";
    case SettingType::kNumber: return "number";
    case SettingType::kBytes: return "size";
    case SettingType::kPath:
    case SettingType::kFolder: return "path";
    case SettingType::kText: return "text";
  }
  return "";
}
const char* name_of(SettingSource source) {
  switch (source) {
    case SettingSource::kDefault: return "default";
    case SettingSource::kEnvironment: return "environment";
    case SettingSource::kCode: return "code";
  }
  return "";
}
std::string_view option_of(const Setting& setting) {
  const bool named = !setting.in_code.empty() || setting.of != SettingOf::kLibrary;
  return named ? setting.in_code : "set_setting()";
}

}  // namespace

Json settings_facts() {
  Json out = Json::array();
  for (const Setting& each : settings()) {
    const std::optional<std::string> value = setting_text(each.name);
    out.push_back({{"name", each.name},
                   {"type", name_of(each.type)},
                   {"value", value ? Json(*value) : Json()},
                   {"source", name_of(source_of(each))},
                   {"refused", value ? refusal_of(each, *value) : ""},
                   {"default", each.otherwise},
                   {"values", each.values},
                   {"in_code", option_of(each)},
                   {"meaning", each.meaning}});
  }
  return out;
}

void print_settings(const Json& settings) {
  for (const Json& each : settings) {
    std::string value =
        each["value"].is_null()
            ? (text(each["default"]).empty() ? "not set" : text(each["default"]) + " (default)")
            : text(each["value"]) + " (" + text(each["source"]) + ")";
    // Of most settings such a value is ignored, of some an error of what reads it.
    if (!text(each["refused"]).empty()) value += "; not in force: " + text(each["refused"]);
    fmt::print("{:<24} {}\n{:<24} {}: {}{}\n", text(each["name"]), value, "", text(each["values"]),
               text(each["meaning"]),
               text(each["in_code"]).empty() ? "" : " In code: " + text(each["in_code"]) + ".");
  }
}

void print_settings_document() {
  for (SettingOf of : {SettingOf::kLibrary, SettingOf::kCommand, SettingOf::kTests}) {
    fmt::print(
        "\n## {}\n\n| variable | type | values | default | meaning | in code "
        "|\n|---|---|---|---|---|---|\n",
        title(of));
    for (const Setting& each : settings()) {
      if (each.of == of)
        fmt::print("| `{}` | {} | {} | {} | {} | {} |\n", each.name, name_of(each.type),
                   each.values, each.otherwise, each.meaning, code(option_of(each)));
    }
  }
}

}  // namespace sluice::tools
