#include "tools/lab/lab_command.h"

#include "tools/python/become_python.h"

namespace sluice::tools {

void add_lab_command(CLI::App& app) {
  app.add_subcommand("lab",
                     "run any command in a guest with soft-RoCE: run, shell, prepare, fault");
}

int run_lab(int argc, char** argv) {
  return become_python({"lab", "lab.py", "tools/lab", "SLUICE_LAB_HOME"}, {argv, argv + argc});
}

}  // namespace sluice::tools
