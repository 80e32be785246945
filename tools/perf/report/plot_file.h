// A run's figures over its sizes, drawn where --plot says.
#pragma once

#include <string>

#include "tools/perf/run/run.h"

namespace sluice::tools {

// Why nothing can be drawn there (the name's end says what: .svg, .gp; "-" is stdout); empty: it
// can. Leaves nothing there.
std::string plot_obstacle(const std::string& path);
// Medians with the 99th percentile above them in latency tests, else bandwidths. Nothing where no
// size has a figure. Errors: kInternal where not all could be written; then nothing is there.
Status draw(const PerfOptions& options, const ClientRun& run);
// Where --hist says: the distribution of each size, as gnuplot reads data.
Status write_histograms(const PerfOptions& options, const ClientRun& run);

}  // namespace sluice::tools
