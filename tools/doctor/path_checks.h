// Checks of the paths: each that can be tried on one machine is tried, with a message there and
// back.
#pragma once

#include <string>
#include <vector>

#include <sluice/base/result.h>

#include "tools/doctor/finding.h"

namespace sluice::tools {

// The names that `needed` may have, best first.
const std::vector<std::string>& path_names();

// A listener and a connection of this process at `address`, and 64 KiB there and back, which are
// compared. The text: which path it took, and why. Blocks: at most some 10 s. Errors: those of the
// library; kCorrupt if other bytes came back.
Result<std::string> try_path(const std::string& listen_at);

// `needed`: paths that have to work here: what keeps one of them from it is a problem, else it is a
// note.
Findings check_paths(const std::vector<std::string>& needed);

}  // namespace sluice::tools
