// Every environment variable that sluice reads: one table, for `sluice info --settings`, `sluice
// doctor` and docs/settings.md.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::tools {

enum class SettingOf {
  kLibrary,  // any program that uses sluice
  kCommand,  // `sluice lab`, `sluice bench`, and what they set for what they run
  kTests,
};

struct Setting {
  std::string_view name;
  SettingOf of;
  std::string_view values;              // what it may be, for people: "1", "8G"
  std::vector<std::string_view> words;  // all that it may be; empty: not a list of words
  std::string_view otherwise;           // if it is not set
  std::string_view in_code;  // the option that says the same, and goes before it; empty: none
  std::string_view meaning;
};

// Sorted by who reads it, then by name.
std::span<const Setting> settings();
const Setting* find_setting(std::string_view name);

// The settings of this process: {name, value (null: not set), default, values, in_code, meaning}.
nlohmann::json settings_facts();
void print_settings(const nlohmann::json& settings);
// The tables of docs/settings.md.
void print_settings_document();

}  // namespace sluice::tools
