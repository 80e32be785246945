// Flags of `sluice perf` that say what is sent, and over what.
#ifndef SLUICE_TOOLS_PERF_FLAGS_LOAD_FLAGS_H_
#define SLUICE_TOOLS_PERF_FLAGS_LOAD_FLAGS_H_

#include <string>

#include <CLI/CLI.hpp>

#include "tools/perf/flags/plan.h"

namespace sluice::tools {

// All tests, with a space between two.
std::string names_of_tests();
// TEST, HOST, and flags of the load: sizes, iterations, depth, verification.
void add_load_flags(CLI::App& perf, PerfOptions& o);
// Flags of the link: path, port, waiting, processes.
void add_link_flags(CLI::App& perf, PerfOptions& o);

}  // namespace sluice::tools

#endif  // SLUICE_TOOLS_PERF_FLAGS_LOAD_FLAGS_H_
