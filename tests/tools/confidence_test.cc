#include <catch2/catch.hpp>

#include <cmath>
#include <random>

#include "tools/perf/report/confidence.h"

namespace sluice::tools {
namespace {

TEST_CASE("Student's quantiles are those of the tables", "[confidence]") {
  struct Known {
    double level;
    unsigned degrees;
    double t;
  };
  // NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, two-sided.
  constexpr Known kTable[] = {
      {0.95, 1, 12.706},  {0.95, 2, 4.303},  {0.95, 4, 2.776}, {0.95, 10, 2.228}, {0.95, 30, 2.042},
      {0.95, 100, 1.984}, {0.99, 1, 63.657}, {0.99, 2, 9.925}, {0.99, 10, 3.169}, {0.99, 50, 2.678},
      {0.90, 1, 6.314},   {0.90, 5, 2.015},  {0.90, 20, 1.725}};
  for (const Known& known : kTable) {
    CAPTURE(known.level, known.degrees);
    CHECK(student_t(known.level, known.degrees) == Approx(known.t).margin(0.0006));
  }
  // Of many, the normal distribution's.
  CHECK(student_t(0.95, 100'000) == Approx(1.95996).margin(0.0001));
}

TEST_CASE("the interval of few values is the one that is computed by hand", "[confidence]") {
  MeanInterval interval = interval_of_mean({9, 10, 11}, 0.95);  // deviation 1, error 1 / sqrt 3
  CHECK(interval.mean == Approx(10));
  CHECK(interval.high - 10 == Approx(4.3027 / std::sqrt(3.0)).epsilon(1e-4));
  CHECK(10 - interval.low == Approx(interval.high - 10));
  CHECK(interval.half_width_percent() == Approx(24.84).margin(0.01));
  CHECK(interval_of_mean({5, 5, 5}, 0.99).half_width_percent() == 0);
}

// Share of `trials` whose interval holds the mean that is known.
template <typename Draw>
double coverage(Draw draw, double mean, size_t values, double level) {
  constexpr int kTrials = 4000;
  int held = 0;
  for (int i = 0; i < kTrials; ++i) {
    std::vector<double> drawn(values);
    for (double& value : drawn) value = draw();
    MeanInterval interval = interval_of_mean(drawn, level);
    if (interval.low <= mean && mean <= interval.high) ++held;
  }
  return held / static_cast<double>(kTrials);
}

TEST_CASE("of normal values as many intervals hold the mean as they say, of few values, too",
          "[confidence]") {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal(100, 15);
  // Four standard deviations of the share.
  for (size_t values : {3, 5, 20})
    CHECK(coverage([&] { return normal(random); }, 100, values, 0.95) ==
          Approx(0.95).margin(0.014));
  CHECK(coverage([&] { return normal(random); }, 100, 4, 0.99) == Approx(0.99).margin(0.0065));
}

TEST_CASE("of even and of skewed values it is a little less", "[confidence]") {
  std::mt19937_64 random(6);
  std::uniform_real_distribution<double> even(0, 1);
  CHECK(coverage([&] { return even(random); }, 0.5, 10, 0.95) == Approx(0.95).margin(0.02));
  std::exponential_distribution<double> skewed(1);
  double share = coverage([&] { return skewed(random); }, 1, 20, 0.95);
  CHECK(share > 0.89);
  CHECK(share < 0.95);
}

}  // namespace
}  // namespace sluice::tools
