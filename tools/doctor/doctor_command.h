// `sluice doctor`: whether this machine, or this machine and another, can use each path, and what
// to do if not.
#pragma once

#include <CLI/CLI.hpp>

namespace sluice::tools {

// Exit codes: 0 no problem was found (notes may be), 1 a problem, 2 the command line is wrong.
void add_doctor_command(CLI::App& app, int& exit_code);

}  // namespace sluice::tools
