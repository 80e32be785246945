// Measures this machine for its thresholds: at most 200 ms for shared memory, for TCP on this
// machine, for frames in UDP on this machine, and for copies. Knows nothing of files.
#pragma once

#include <array>

#include <sluice/base/clock.h>
#include <sluice/base/result.h>
#include <sluice/tuning/cache_file.h>

namespace sluice::tools {

// The timed part of each of the four.
inline constexpr Duration kProbeBudget = std::chrono::milliseconds(150);

// For each knob a value and what it was chosen by; a knob that cannot be measured here has the
// usual value and the reason. Requires: no context open, one thread. Blocks: about 0.8 s. Errors:
// of processes, memory and connections.
Result<std::array<tuning::Measurement, tuning::kKnobCount>> probe();

}  // namespace sluice::tools
