#include "tools/bench/bench_command.h"

#include <cstdlib>

#include "tools/python/become_python.h"

namespace sluice::tools {

void add_bench_command(CLI::App& app) {
  app.add_subcommand("bench",
                     "regenerate the figures of the documents on this machine: --quick, --only "
                     "E01,E05, --report DIR");
}

int run_bench(int argc, char** argv) {
  // Not as an argument: what is asked for is recorded in the result as the user wrote it.
  setenv("SLUICE_BENCH_BIN", folder_of_binaries().c_str(), /*overwrite=*/0);
  return become_python({"bench", "bench.py", "tools/bench", "SLUICE_BENCH_HOME"},
                       {argv, argv + argc});
}

}  // namespace sluice::tools
