// The demo command alone, for its tests; the product's door is //tools:sluice.
#include <cstdio>

#include "tools/demo_job/demo_command.h"

int main(int argc, char** argv) {
  CLI::App app("sluice");
  int exit_code = 0;
  sluice::tools::add_demo_command(app, exit_code);
  app.require_subcommand(1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return exit_code;
}
