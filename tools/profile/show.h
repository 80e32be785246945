// Prints recordings: what was sent, and what was done between messages.
#pragma once

#include <string>
#include <vector>

#include <sluice/recording/format.h>

namespace sluice::tools::profile {

std::string show(const std::vector<recording::Recording>& recordings);

}  // namespace sluice::tools::profile
