#include "tools/bench/bench_command.h"

#include <cstdlib>

#include "tools/python/become_python.h"

namespace sluice::tools {
namespace {

// What bench.py knows, in short: a test compares them.
constexpr const char* kHelp = R"(usage: sluice bench [OPTIONS]

regenerates the figures of the documents on this machine

  --quick          in less than 4 minutes, as many rounds as they allow
  --judge          as many rounds as verdicts take: 7, or 21 where 5 % decide
  --only E01,E05   experiments, or questions of them, by name
  --rounds N       rounds of each question (7; 21 where 5 % decide)
  --peers          also the programs of others, in the same rounds and tables
  --report DIR     write DIR/index.html, summary.md and result.json; go on from
                   the rounds that are there, in a guest of the lab, too
  --replace        measure anew what was taken with other programs
  --no-lab         boot no guest
  --json FILE      write the result there; - is stdout
  --from FILE      report on recorded results, run nothing
  --bin DIR        folder of the built programs
  --seconds S      stop beginning rounds so that the run takes at most this long
  --list           list the experiments and what is missing of them
)";

}  // namespace

void add_bench_command(CLI::App& app) {
  app.add_subcommand("bench",
                     "regenerate the figures of the documents on this machine: --quick, --only "
                     "E01,E05, --report DIR")
      ->footer(kHelp);
}

int run_bench(int argc, char** argv) {
  // Not as an argument: what is asked for is recorded in the result as the user wrote it.
  setenv("SLUICE_BENCH_BIN", folder_of_binaries().c_str(), /*overwrite=*/0);
  return become_python({"bench", "bench.py", "tools/bench", "SLUICE_BENCH_HOME", kHelp},
                       {argv, argv + argc});
}

}  // namespace sluice::tools
