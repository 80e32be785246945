// Flags of the conditions under which messages are sent.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/perf/flags/plan.h"

namespace sluice::tools {

void add_condition_flags(CLI::App& perf, PerfOptions& options);
// What single flags cannot see; adds neighbours to the sizes. What cannot be honoured goes to
// options.unhonoured. Throws CLI::ValidationError.
void check_conditions(PerfOptions& options);

}  // namespace sluice::tools
