// The version that the command prints and writes into its results.
#pragma once

namespace sluice::tools {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace sluice::tools
