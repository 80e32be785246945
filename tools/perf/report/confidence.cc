#include "tools/perf/report/confidence.h"

#include <boost/math/distributions/students_t.hpp>
#include <cmath>

namespace sluice::tools {

double student_t(double level, unsigned degrees) {
  const boost::math::students_t distribution(degrees);
  return boost::math::quantile(boost::math::complement(distribution, (1 - level) / 2));
}

MeanInterval interval_of_mean(const std::vector<double>& values, double level) {
  auto count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (double value : values) sum += value;
  double mean = sum / count;
  for (double value : values) squares += (value - mean) * (value - mean);
  double error = std::sqrt(squares / (count - 1) / count);
  double half = student_t(level, static_cast<unsigned>(values.size() - 1)) * error;
  return {mean, mean - half, mean + half};
}

}  // namespace sluice::tools
