#include "tools/lab/lab_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace sluice::tools {
namespace {

constexpr int kExitNothingToRunOn = 77;
constexpr const char* kProgram = "lab.py";

std::vector<std::filesystem::path> places() {
  std::vector<std::filesystem::path> found;
  if (const char* home = std::getenv("SLUICE_LAB_HOME")) found.emplace_back(home);
  std::error_code ignored;
  std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  // As a tool inside a test's runfiles, and as the binary that `bazel build` made.
  if (const char* runfiles = std::getenv("RUNFILES_DIR")) found.push_back(std::filesystem::path(runfiles) / "sluice/tools/lab");
  found.push_back(std::filesystem::path(self.string() + ".runfiles") / "sluice/tools/lab");
  found.push_back(self.parent_path().parent_path() / "share/sluice/lab");
  return found;
}

}  // namespace

void add_lab_command(CLI::App& app) { app.add_subcommand("lab", "run any command in a guest with soft-RoCE: run, shell, prepare, fault"); }

int run_lab(int argc, char** argv) {
  std::string looked;
  for (const std::filesystem::path& place : places()) {
    std::filesystem::path program = place / kProgram;
    std::error_code ignored;
    if (!std::filesystem::exists(program, ignored)) {
      looked += (looked.empty() ? "" : ", ") + place.string();
      continue;
    }
    std::string interpreter = "python3";
    std::string text = program.string();
    std::string no_cache = "-B";  // no __pycache__ beside the sources
    std::vector<char*> arguments{interpreter.data(), no_cache.data(), text.data()};
    arguments.insert(arguments.end(), argv, argv + argc);
    arguments.push_back(nullptr);
    execvp(interpreter.c_str(), arguments.data());
    fmt::print(stderr, "sluice lab: cannot run python3: {}; apt-get install python3\n", std::strerror(errno));
    return kExitNothingToRunOn;
  }
  fmt::print(stderr, "sluice lab: {} is in none of {}; set SLUICE_LAB_HOME to the folder tools/lab of the sources\n", kProgram, looked);
  return kExitNothingToRunOn;
}

}  // namespace sluice::tools
