// The subcommand `broker`: lends packet sockets to programs without privileges.
#pragma once

#include <CLI/CLI.hpp>

namespace sluice::tools {

void add_broker_command(CLI::App& app, int& exit_code);

}  // namespace sluice::tools
