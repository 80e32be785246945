// The table of settings (base/settings.h) as `sluice info --settings` and docs/settings.md show it.
#pragma once

#include <nlohmann/json.hpp>

#include <sluice/base/settings.h>

namespace sluice::tools {

// The settings of this process: {name, type, value (null: not set),
// source, default, values, in_code, meaning}.
nlohmann::json settings_facts();
void print_settings(const nlohmann::json& settings);
// The tables of docs/settings.md.
void print_settings_document();

}  // namespace sluice::tools
