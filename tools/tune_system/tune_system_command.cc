#include "tools/tune_system/tune_system_command.h"

#include "tools/python/become_python.h"

namespace sluice::tools {
namespace {

// What command_line.py knows, in short: a test compares them.
constexpr const char* kHelp = R"(usage: sluice tune system [OPTIONS]

tries values of kernel, interfaces and sockets on a cluster, and keeps what is best for a workload

  --lab N  --rate RATE     N nodes and a front end in network namespaces of this machine (1gbit)
  --config FILE            configuration in TOML: parameters, test, nodes
  --algorithm NAME         halving (default), descent, exhaustive, rusan
  --workload NAME          the name under which the result is kept
  --report DIR             write the result and its curves there, and curves.gp for gnuplot
  --show  --interface NAME list all parameters, their values here, and why one cannot be set
  --apply                  set on all nodes what was chosen for --workload, and read it back
  --undo                   put back what --apply or an interrupted run has changed
  --results                list the workloads that have a result
  --dry-run                print what would be run on each node, and contact none
  --ssh COMMAND            in place of `ssh -o BatchMode=yes -o ConnectTimeout=5`
  --test                   run the network test tool alone: NetPIPE's schedule and columns
options of --test:
  --mode pingpong|stream|bidir|file  --transport tcp|udp  --ipv6
  --start SIZE  --end SIZE  --perturbation N  --fac2
  --trials N  --seconds S  --repeats N  --pairs N
  --integrity  --nocache  --file-bytes SIZE  --sndbuf SIZE  --rcvbuf SIZE
  --np-out FILE            write the columns there, too
)";

}  // namespace

void add_tune_system_command(CLI::App& tune) {
  CLI::App* system =
      tune.add_subcommand("system",
                          "try values of kernel, interfaces and sockets on a cluster: --lab N, "
                          "--config FILE, --undo");
  system->footer(kHelp);
  system->callback([] {
    throw CLI::ValidationError(
        "system",
        "nothing may stand before it, its options come after it; example: sluice tune "
        "system --lab 2");
  });
}

int run_tune_system(int argc, char** argv) {
  return become_python(
      {"tune system", "tune_system.py", "tools/tune_system", "SLUICE_TUNE_SYSTEM_HOME", kHelp},
      {argv, argv + argc});
}

}  // namespace sluice::tools
