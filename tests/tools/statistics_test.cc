#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tools/perf/statistics.h"

namespace sluice::tools {
namespace {

TEST_CASE("percentiles of 1 to 1000 are the ranks themselves, in any order of arrival", "[statistics]") {
  std::vector<double> samples;
  for (int i = 1; i <= 1000; ++i) samples.push_back(i);
  std::shuffle(samples.begin(), samples.end(), std::mt19937(7));
  Distribution d = summarize(samples);
  CHECK(d.count == 1000);
  CHECK(d.min == 1);
  CHECK(d.p50 == 500);
  CHECK(d.p99 == 990);
  CHECK(d.p99_9 == 999);
  CHECK(d.max == 1000);
  CHECK(d.mean == Approx(500.5));
  // Of 1..n, of the sample: n (n + 1) / 12.
  CHECK(d.stdev == Approx(std::sqrt(1000.0 * 1001.0 / 12.0)));
}

TEST_CASE("the longest sample is kept: one in ten thousand shows in the maximum only", "[statistics]") {
  std::vector<double> samples(9999, 10.0);
  samples.insert(samples.begin() + 17, 1e6);
  Distribution d = summarize(samples);
  CHECK(d.p99_9 == 10.0);
  CHECK(d.max == 1e6);
}

TEST_CASE("a percentile is a sample that was measured, also of few", "[statistics]") {
  std::vector<double> three = {30, 10, 20};
  Distribution d = summarize(three);
  CHECK(d.p50 == 20);
  CHECK(d.p99 == 30);
  CHECK(d.stdev == Approx(10));
  std::vector<double> one = {4};
  d = summarize(one);
  CHECK(d.p50 == 4);
  CHECK(d.p99_9 == 4);
  CHECK(d.stdev == 0);
  std::vector<double> none;
  CHECK(summarize(none).count == 0);
}

TEST_CASE("the deviation of large samples that differ little does not cancel", "[statistics]") {
  std::vector<double> samples;
  for (int i = 0; i < 1000; ++i) samples.push_back(1e12 + (i % 2 == 0 ? 0.5 : -0.5));
  CHECK(summarize(samples).stdev == Approx(0.5).epsilon(0.01));
}

}  // namespace
}  // namespace sluice::tools
