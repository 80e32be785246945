// Runs a program with a recorder in it.
#pragma once

#include <string>
#include <vector>

namespace sluice::tools::profile {

// The exit code of the program, 128 + n if signal n ended it; 1 if nothing was recorded. `folder`
// is made if it is not there; empty: a new one beside the caller.
int record(const std::vector<std::string>& program, std::string folder);

}  // namespace sluice::tools::profile
