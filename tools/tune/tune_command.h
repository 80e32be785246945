// `sluice tune`: measures this machine and keeps what it found for every context that is opened
// here.
#pragma once

#include <CLI/CLI.hpp>

namespace sluice::tools {

void add_tune_command(CLI::App& app, int& exit_code);

}  // namespace sluice::tools
