#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tools/perf/report/statistics.h"

namespace sluice::tools {
namespace {

TEST_CASE("percentiles of 1 to 1000 are the ranks themselves, in any order of arrival",
          "[statistics]") {
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

TEST_CASE("the longest sample is kept: one in ten thousand shows in the maximum only",
          "[statistics]") {
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

Rank rank(const char* text) { return parse_rank(text).value(); }

TEST_CASE("a percentile of any rank is the sample that so many per cent do not exceed, exactly",
          "[statistics]") {
  std::vector<double> samples;
  for (int i = 1; i <= 1000; ++i) samples.push_back(i);
  // In binary fractions 99.9 per cent of 1000 is a little more than 999, and 0.1 of it than 1.
  for (int i = 1; i <= 1000; ++i) {
    std::string text = std::to_string(i / 10) + "." + std::to_string(i % 10);
    CHECK(percentile(samples, rank(text.c_str())) == i);
  }
  CHECK(percentile(samples, rank("99.90001")) == 1000);
  CHECK(percentile(samples, rank("0.000001")) == 1);
  CHECK(percentile(samples, rank("100")) == 1000);
  std::vector<double> one = {7};
  CHECK(percentile(one, rank("0.5")) == 7);
}

TEST_CASE("a rank is above 0 and up to 100, with six decimals at most", "[statistics]") {
  for (const char* bad : {"", "0", "0.0", "100.000001", "101", "1000", "-1", "5x", ".5", "5.",
                          "1.2.3", "nan", "99.1234567", "1e1"}) {
    INFO(bad);
    CHECK_FALSE(parse_rank(bad).has_value());
  }
  CHECK(rank("99.9").parts == 99'900'000);
  CHECK(rank("99.99").name() == "p99_99");
  CHECK(rank("50").name() == "p50");
}

TEST_CASE("a histogram holds every sample once, in the bin it is within", "[statistics]") {
  std::vector<double> samples = {0, 0.5, 1, 1.1, 1.5, 2, 1e9};
  std::vector<Bin> bins = histogram(samples);
  size_t sum = 0, at = 0;
  double last = -1;
  for (const Bin& bin : bins) {
    CHECK(bin.from >= last);
    CHECK(bin.count > 0);
    CHECK((bin.from == 0 || bin.to / bin.from == Approx(std::exp2(0.25))));
    for (size_t i = 0; i < bin.count; ++i, ++at)
      CHECK((samples[at] >= bin.from && samples[at] < bin.to));
    last = bin.to;
    sum += bin.count;
  }
  CHECK(sum == samples.size());
  CHECK(bins.front().from == 0);
  CHECK(bins.front().count == 2);
  CHECK(histogram({}).empty());
}

TEST_CASE("the deviation of known samples is theirs, not the population's", "[statistics]") {
  std::vector<double> samples = {2, 4, 4, 4, 5, 5, 7, 9};  // mean 5, squares 32
  CHECK(summarize(samples).stdev == Approx(std::sqrt(32.0 / 7)));
  // Below one unit: integers would say 0.
  std::vector<double> close = {1.25, 1.75};
  CHECK(summarize(close).stdev == Approx(std::sqrt(0.125)));
}

}  // namespace
}  // namespace sluice::tools
