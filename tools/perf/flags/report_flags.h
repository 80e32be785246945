// The flags that say what a run prints and writes, and those of perftest that have no
// effect here. Knows nothing of what is measured.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/perf/flags/plan.h"

namespace sluice::tools {

void add_report_flags(CLI::App& perf, PerfOptions& options);
// perftest's flags that are taken and not followed: a line on stderr each, or with
// --strict the end.
void add_unhonoured_flags(CLI::App& perf, PerfOptions& options);

// Ours that have no effect beside the others that were given. Before check_report().
void note_idle_flags(const CLI::App& perf, PerfOptions& options);

// What single flags cannot see. Throws CLI::ValidationError.
void check_report(PerfOptions& options);
// Throws for what was no flag; names the nearest one.
void check_extras(const CLI::App& perf);

}  // namespace sluice::tools
