// `sluice lab ...`: hands over to the Python program beside this file (lab.py says why it is one).
#pragma once

#include <CLI/CLI.hpp>

namespace sluice::tools {

// Lists the command in `sluice --help`. Its arguments are never seen by CLI11: run_lab takes them before.
void add_lab_command(CLI::App& app);

// Becomes tools/lab/lab.py with the arguments after "lab". Returns only if that fails: 77, with a line that says why.
// The program is looked for in $SLUICE_LAB_HOME, the runfiles of this binary, and ../share/sluice/lab beside it.
int run_lab(int argc, char** argv);

}  // namespace sluice::tools
