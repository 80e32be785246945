// What a run must reach: figures of an earlier run's document (--baseline), or numbers
// (-w, -y). Knows nothing of how they are measured.
#pragma once

#include <string>
#include <vector>

#include "tools/perf/report/report.h"

namespace sluice::tools {

// Reads the document at options.baseline_path into options.references, one for each size of
// this run. Returns why it cannot be compared with; empty: it can.
std::string read_baseline(PerfOptions& options);

// One line for people for each size: what it was, what it is, which is worse by how much.
// Sets `missed` where that is more than is let pass, and adds the comparison to `document`.
std::vector<std::string> judge(const PerfOptions& options, const ClientRun& run, Json& document,
                               bool& missed);

}  // namespace sluice::tools
