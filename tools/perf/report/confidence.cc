#include "tools/perf/report/confidence.h"

#include <cmath>

namespace sluice::tools {
namespace {

// The continued fraction of the incomplete beta function, from its last term to the first:
// converges where x < (a + 1) / (a + b + 2) (Abramowitz and Stegun, 26.5.8).
double beta_fraction(double a, double b, double x) {
  constexpr int kTerms = 400;
  double value = 1;
  for (int i = kTerms; i >= 1; --i) {
    double m = i / 2;
    double d = i % 2 == 0 ? m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
                          : -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    value = 1 + d / value;
  }
  return 1 / value;
}

// The regularised incomplete beta function.
double beta_share(double a, double b, double x) {
  if (x <= 0 || x >= 1) return x <= 0 ? 0 : 1;
  double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) +
                          b * std::log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

}  // namespace

double student_t(double level, unsigned degrees) {
  double n = degrees;
  auto outside = [n](double t) { return beta_share(n / 2, 0.5, n / (n + t * t)); };
  double low = 0, high = 1;
  while (outside(high) > 1 - level) high *= 2;
  for (int i = 0; i < 100; ++i) {
    double middle = (low + high) / 2;
    (outside(middle) > 1 - level ? low : high) = middle;
  }
  return (low + high) / 2;
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
