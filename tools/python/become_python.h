// A subcommand that is a Python program of the source tree. Knows none of them.
#pragma once

#include <string>
#include <vector>

namespace sluice::tools {

struct PythonProgram {
  std::string command;        // the subcommand, for messages: "lab"
  std::string file;           // "lab.py"
  std::string folder;         // in the source tree: "tools/lab"
  std::string home_variable;  // names the folder instead: "SLUICE_LAB_HOME"
  std::string help;           // for --help where the program is not there
};

// Becomes the program with `arguments`. Returns only if that fails: 77, with a line that says why;
// or 0 after it printed `help`, if --help was all that was asked for.
// It is looked for in the folder that the variable names, the runfiles of this binary, and
// ../share/sluice/NAME beside it, where NAME is the folder's last part: "lab".
int become_python(const PythonProgram& program, std::vector<std::string> arguments);

// The folder of built programs that this binary is in: BIN of BIN/tools/sluice.
std::string folder_of_binaries();

}  // namespace sluice::tools
