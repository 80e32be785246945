// `sluice demo`: the parameter-server job, side by side with gRPC.
#ifndef SLUICE_TOOLS_DEMO_JOB_DEMO_COMMAND_H_
#define SLUICE_TOOLS_DEMO_JOB_DEMO_COMMAND_H_

#include <CLI/CLI.hpp>

namespace sluice::tools {

// Adds the subcommand; it runs from its callback and leaves the exit code there:
// 0 ok, 1 failed, 4 a byte was wrong. Flags that do not parse throw CLI::ParseError
// with the flag, the value and an example, for the caller to turn into 2.
// Requires: the process has no threads and no contexts while it runs (it forks).
void add_demo_command(CLI::App& app, int& exit_code);

}  // namespace sluice::tools

#endif  // SLUICE_TOOLS_DEMO_JOB_DEMO_COMMAND_H_
