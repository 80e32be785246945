// Checks of the way to another machine.
#pragma once

#include <string>

#include "tools/doctor/finding.h"

namespace sluice::tools {

// `target`: "HOST", or "HOST:PORT" ("[ADDRESS]:PORT" for IPv6) if a program that uses sluice
// listens there. Blocks: for the system's resolver, and at most some 10 s.
Findings check_host(const std::string& target);

}  // namespace sluice::tools
