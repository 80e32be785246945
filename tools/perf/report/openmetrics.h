// A document of results as OpenMetrics text 1.0, for what collects metrics of many machines
// (node_exporter's textfile collector, for one). Pure.
#pragma once

#include <string>

#include "tools/perf/run/control.h"

namespace sluice::tools {

// Base units, as OpenMetrics wants: seconds and bytes. Ends with `# EOF`.
// Requires: a document of sluice.perf/1 (report.h), of one run or of a batch.
std::string openmetrics(const Json& document);

}  // namespace sluice::tools
