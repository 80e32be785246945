// `sluice graph`: plans of dataflow graphs, read, checked, printed and run in virtual time.
#ifndef SLUICE_TOOLS_GRAPH_GRAPH_COMMAND_H_
#define SLUICE_TOOLS_GRAPH_GRAPH_COMMAND_H_

#include <CLI/CLI.hpp>

namespace sluice::tools {

// Exit code: 0 ok, 1 a file that is refused or a plan that is wrong.
void add_graph_command(CLI::App& app, int& exit_code);

}  // namespace sluice::tools

#endif  // SLUICE_TOOLS_GRAPH_GRAPH_COMMAND_H_
