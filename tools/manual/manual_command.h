// `sluice completion` and `sluice manual`: what a shell completes and man pages, from the flags
// that the command has.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace sluice::tools {

// A script for bash, which zsh runs too (bashcompinit): `source <(sluice completion bash)`.
std::string completion_script(const CLI::App& app);

// A page of section 1 in man(7)'s language: of `app` itself if `command` is null, else of that
// subcommand.
std::string manual_page(const CLI::App& app, const CLI::App* command);

// Last of all, since what was added before is what they tell of.
void add_manual_commands(CLI::App& app, int& exit_code);

}  // namespace sluice::tools
