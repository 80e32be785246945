// Which of some words is meant by one that is none of them. Knows nothing of flags.
#pragma once

#include <string>
#include <vector>

namespace sluice::tools {

// The known word with the fewest letters to change, add or leave out; the first of equals.
// Empty: none is near (more than half of the letters differ).
std::string nearest(const std::string& wanted, const std::vector<std::string>& known);

}  // namespace sluice::tools
