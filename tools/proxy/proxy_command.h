// `sluice proxy`: any TCP port or Unix socket over sluice.
#pragma once

#include <CLI/CLI.hpp>

namespace sluice::tools {

void add_proxy_command(CLI::App& app, int& exit_code);

}  // namespace sluice::tools
