// `sluice info`: what this build finds on this machine, and why a path is used or not.
#pragma once

#include <CLI/CLI.hpp>

namespace sluice::tools {

void add_info_command(CLI::App& app, int& exit_code);

}  // namespace sluice::tools
