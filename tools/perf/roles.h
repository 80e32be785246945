// Server, client, or both ends: opens contexts, connects, runs, reports, cleans up.
#pragma once

#include <string_view>

#include "tools/perf/plan.h"

namespace sluice::tools {

// A value of --transport: one that can be asked for, here or in another build.
bool is_transport(std::string_view name);

// Where a client connects to, or a server listens.
std::string meeting_address(const PerfOptions& options);

// The command's exit code. Notes and errors go to stderr.
int run_perf(const PerfOptions& options);

}  // namespace sluice::tools
