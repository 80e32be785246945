// `sluice explain`: what a code or a counter means, what usually causes it, what to do.
#ifndef SLUICE_TOOLS_EXPLAIN_EXPLAIN_COMMAND_H_
#define SLUICE_TOOLS_EXPLAIN_EXPLAIN_COMMAND_H_

#include <CLI/CLI.hpp>

namespace sluice::tools {

// Adds the subcommand; its callback sets exit_code.
void add_explain_command(CLI::App& app, int& exit_code);

}  // namespace sluice::tools

#endif  // SLUICE_TOOLS_EXPLAIN_EXPLAIN_COMMAND_H_
