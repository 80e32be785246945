// The subcommand `dump`: its flags.
#pragma once

#include <CLI/CLI.hpp>

namespace sluice::tools {

void add_dump_command(CLI::App& app, int& exit_code);

}  // namespace sluice::tools
