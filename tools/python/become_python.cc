#include "tools/python/become_python.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace sluice::tools {
namespace {

constexpr int kExitNothingToRunOn = 77;

std::filesystem::path self() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored);
}

std::vector<std::filesystem::path> places(const PythonProgram& program) {
  std::vector<std::filesystem::path> found;
  if (const char* home = std::getenv(program.home_variable.c_str())) found.emplace_back(home);
  // As a tool inside a test's runfiles, and as the binary that `bazel build` made.
  if (const char* runfiles = std::getenv("RUNFILES_DIR"))
    found.push_back(std::filesystem::path(runfiles) / "sluice" / program.folder);
  found.push_back(std::filesystem::path(self().string() + ".runfiles") / "sluice" / program.folder);
  found.push_back(self().parent_path().parent_path() / "share/sluice" /
                  std::filesystem::path(program.folder).filename());
  return found;
}

}  // namespace

std::string folder_of_binaries() { return self().parent_path().parent_path().string(); }

int become_python(const PythonProgram& program, std::vector<std::string> arguments) {
  std::string looked;
  for (const std::filesystem::path& place : places(program)) {
    const std::filesystem::path file = place / program.file;
    std::error_code ignored;
    if (!std::filesystem::exists(file, ignored)) {
      looked += (looked.empty() ? "" : ", ") + place.string();
      continue;
    }
    // -B: no __pycache__ beside the sources.
    arguments.insert(arguments.begin(), {"python3", "-B", file.string()});
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    execvp(pointers[0], pointers.data());
    fmt::print(stderr, "sluice {}: cannot run python3: {}; apt-get install python3\n",
               program.command, std::strerror(errno));
    return kExitNothingToRunOn;
  }
  const bool asks = std::any_of(arguments.begin(), arguments.end(), [](const std::string& each) {
    return each == "--help" || each == "-h";
  });
  if (asks) {
    fmt::print(
        "{}\nThis program is without the Python part of `sluice {}`: set {} to the folder "
        "{} of the sources.\n",
        program.help, program.command, program.home_variable, program.folder);
    return std::fflush(stdout) == 0 ? 0 : 1;
  }
  fmt::print(stderr, "sluice {}: {} is in none of {}; set {} to the folder {} of the sources\n",
             program.command, program.file, looked, program.home_variable, program.folder);
  return kExitNothingToRunOn;
}

}  // namespace sluice::tools
