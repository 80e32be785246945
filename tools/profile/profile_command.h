// `sluice profile`: records a program, shows the recording, and names the profile that suits it.
#pragma once

#include <CLI/CLI.hpp>

namespace sluice::tools {

void add_profile_command(CLI::App& app, int& exit_code);

}  // namespace sluice::tools
