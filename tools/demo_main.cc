// The main job alone: what tools/demo builds, in half the time of the whole command.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "tools/demo_job/demo_command.h"

namespace {
constexpr int kExitUsage = 2;
}  // namespace

int main(int argc, char** argv) {
  CLI::App app("the main job of sluice; the whole command is //tools:sluice", "sluice-demo");
  app.require_subcommand(1);
  int exit_code = 0;
  sluice::tools::add_demo_command(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    const std::string text = error.what();
    fmt::print(stderr, "sluice: {}{}\n", text,
               text.find("example") != std::string::npos
                   ? ""
                   : "; example: tools/demo --model tiny --steps 3");
    return kExitUsage;
  }
  return exit_code;
}
