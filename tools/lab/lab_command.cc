#include "tools/lab/lab_command.h"

#include "tools/python/become_python.h"

namespace sluice::tools {
namespace {

// What options.py knows, in short: a test compares them.
constexpr const char* kHelp =
    R"(usage: sluice lab run|shell|prepare|headers|fault ...

a guest with a soft-RoCE device, whose files are this machine's

  run [OPTIONS] -- COMMAND   run a command in a guest; its output and exit status come back
  shell [OPTIONS]            an interactive shell in a guest
  prepare [--kernel K]       fetch Debian's kernel into the cache, or build one
  headers [--kernel K]       print the folder in which a module for a guest's kernel is built
  fault [--run PID] [--node N] link-down|link-up|mtu|device-remove
                             break or mend the network of a guest that runs now

options of run and shell:
  --kernel auto|host|tcg|tcg-6.12|uml|uml-debug|tcg-debug
  --driver rxe|siw           soft-RoCE (default), or soft-iWARP (User-Mode Linux only)
  --memory SIZE  --cpus N    of each guest (3G, 2)
  --memory-nodes N           NUMA nodes of each guest (1)
  --timeout TIME             from start to end (10m; shell 24h)
  --boot-timeout TIME        a guest that has not come up by then is started again, at most twice
  --artifacts DIR            writable in the guest under the same path; receives the logs
  --verbose                  say what is chosen and how long it took
options of run:
  --nodes 1|2  --peer COMMAND  two guests joined by a wire; the shell command for node 2
  --net SPEC                 what the wire does to frames: loss=1%,delay=1ms,reorder=5%
  --card virtio|vmxnet3      of the two guests
)";

}  // namespace

void add_lab_command(CLI::App& app) {
  app.add_subcommand("lab", "run any command in a guest with soft-RoCE: run, shell, prepare, fault")
      ->footer(kHelp);
}

int run_lab(int argc, char** argv) {
  return become_python({"lab", "lab.py", "tools/lab", "SLUICE_LAB_HOME", kHelp},
                       {argv, argv + argc});
}

}  // namespace sluice::tools
