// The command under another name: a link called ib_write_bw is `sluice perf write_bw` with
// perftest's text, one called sluice_write_bw the same with ours.
#pragma once

#include <string>
#include <vector>

namespace sluice::tools {

// Arguments, the program's name first, as the command `sluice` would have been given them.
std::vector<std::string> as_command(std::vector<std::string> arguments);

}  // namespace sluice::tools
