// `sluice tune system ...`: hands over to the Python program beside this file (tune_system.py says
// what it does).
#pragma once

#include <CLI/CLI.hpp>

namespace sluice::tools {

// Lists the subcommand in `sluice tune --help`. Its arguments are never seen by CLI11:
// run_tune_system takes them before.
void add_tune_system_command(CLI::App& tune);

// Becomes tools/tune_system/tune_system.py with the arguments after "tune system". Returns only if
// that fails: 77, with a line that says why. The program is looked for as become_python says,
// SLUICE_TUNE_SYSTEM_HOME first.
int run_tune_system(int argc, char** argv);

}  // namespace sluice::tools
