// `sluice lab ...`: hands over to the Python program beside this file (lab.py says why it is one).
#pragma once

#include <CLI/CLI.hpp>

namespace sluice::tools {

// Lists the command in `sluice --help`. Its arguments are never seen by CLI11: run_lab takes them
// before.
void add_lab_command(CLI::App& app);

// Becomes tools/lab/lab.py with the arguments after "lab". Returns only if that fails: 77, with a
// line that says why. The program is looked for as become_python says, SLUICE_LAB_HOME first.
int run_lab(int argc, char** argv);

}  // namespace sluice::tools
