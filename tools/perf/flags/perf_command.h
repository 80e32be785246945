// `sluice perf`: the command line, and which process does what.
#pragma once

#include <CLI/CLI.hpp>

namespace sluice::tools {

// Registers the subcommand. When it was chosen, parsing runs it and sets `exit_code`.
// `argv` goes into the results and outlives `app`.
void add_perf_command(CLI::App& app, const std::vector<std::string>& argv, int& exit_code);

}  // namespace sluice::tools
