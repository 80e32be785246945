// `sluice bench ...`: hands over to the Python program beside this file (bench.py says what it
// does).
#pragma once

#include <CLI/CLI.hpp>

namespace sluice::tools {

// Lists the command in `sluice --help`. Its arguments are never seen by CLI11: run_bench takes them
// before.
void add_bench_command(CLI::App& app);

// Becomes tools/bench/bench.py with the arguments after "bench", which measures the programs built
// beside this binary. Returns only if that fails: 77, with a line that says why. The program is
// looked for as become_python says, SLUICE_BENCH_HOME first.
int run_bench(int argc, char** argv);

}  // namespace sluice::tools
