// The flags that say what a run prints and writes. Knows nothing of what is measured.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/perf/flags/plan.h"

namespace sluice::tools {

void add_report_flags(CLI::App& perf, PerfOptions& options);

// Ours that have no effect beside the others that were given. Before check_report().
void note_idle_flags(const CLI::App& perf, PerfOptions& options);

// What single flags cannot see. Throws CLI::ValidationError.
void check_report(PerfOptions& options);
// Throws for what was no flag; names the nearest one.
void check_extras(const CLI::App& perf);

}  // namespace sluice::tools
