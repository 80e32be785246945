// What `sluice info` tells of the thresholds: values, where they come from, what was measured. As
// JSON, and from that as lines for people.
#pragma once

#include <nlohmann/json.hpp>

#include <sluice/tuning/tuning.h>

namespace sluice::tools {

nlohmann::json tuning_facts(const tuning::Tuned& tuned);
// `everything`: why each threshold has its value, too.
void print_tuning(const nlohmann::json& tuning, bool everything);

}  // namespace sluice::tools
