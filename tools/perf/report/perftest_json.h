// The results as perftest's --out_json has them, with its keys. Valid JSON, every size, written
// once.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/perf/flags/plan.h"

namespace sluice::tools {

// Where --out_json writes without --out_json_file, as with perftest.
inline constexpr const char* kPerftestJsonName = "perftest_out.json";

// Made from a run's document (docs/perf.md). "results" is an object as perftest's, or a list of
// them where several sizes were asked for.
nlohmann::json perftest_json(const PerfOptions& options, const nlohmann::json& document);

}  // namespace sluice::tools
