// How well a figure is known that was measured several times: Student's interval of the mean. For
// deciding when to stop; what compares two programs is benchmarks/judging.py.
#pragma once

#include <vector>

namespace sluice::tools {

// What a mean of `degrees` + 1 normal values is off by at most, in its standard errors, in `level`
// of all cases. Requires: 0 < level < 1, degrees > 0.
double student_t(double level, unsigned degrees);

struct MeanInterval {
  double mean = 0, low = 0, high = 0;

  // Half of its width, of the mean.
  double half_width_percent() const { return mean > 0 ? (high - low) / 2 / mean * 100 : 0; }
};
// Requires: two values or more.
MeanInterval interval_of_mean(const std::vector<double>& values, double level);

}  // namespace sluice::tools
