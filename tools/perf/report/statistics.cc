#include "tools/perf/report/statistics.h"

#include <algorithm>
#include <cmath>

namespace sluice::tools {
namespace {

constexpr size_t kDecimals = 6;

// Requires: sorted, not empty. Samples are at most 2^26: the product fits.
double nearest_rank(const std::vector<double>& sorted, uint64_t parts) {
  uint64_t rank = (sorted.size() * parts + Rank::kWhole - 1) / Rank::kWhole;  // rounded up, from 1
  return sorted[std::max<uint64_t>(rank, 1) - 1];
}

// Bin `i` begins there; below the first there is one from 0.
double edge(int i) { return std::exp2(i / 4.0); }

}  // namespace

Distribution summarize(std::vector<double>& samples) {
  Distribution d;
  d.count = samples.size();
  if (samples.empty()) return d;
  std::sort(samples.begin(), samples.end());
  d.min = samples.front();
  d.max = samples.back();
  d.p50 = nearest_rank(samples, Rank::kWhole / 2);
  d.p99 = nearest_rank(samples, Rank::kWhole / 100 * 99);
  d.p99_9 = nearest_rank(samples, Rank::kWhole / 1000 * 999);
  double sum = 0;
  for (double sample : samples) sum += sample;
  d.mean = sum / static_cast<double>(samples.size());
  // Around the mean, in a second pass: the sum of squares alone would cancel.
  double squares = 0;
  for (double sample : samples) squares += (sample - d.mean) * (sample - d.mean);
  if (samples.size() > 1) d.stdev = std::sqrt(squares / static_cast<double>(samples.size() - 1));
  return d;
}

std::string Rank::name() const {
  std::string out = "p" + text;
  std::replace(out.begin(), out.end(), '.', '_');
  return out;
}

std::optional<Rank> parse_rank(std::string_view text) {
  Rank rank;
  size_t point = std::min(text.find('.'), text.size());
  std::string_view whole = text.substr(0, point),
                   decimals = text.substr(std::min(point + 1, text.size()));
  if (whole.empty() || whole.size() > 3 || decimals.size() > kDecimals ||
      (point < text.size() && decimals.empty()))
    return std::nullopt;
  std::string digits(whole);
  digits += decimals;
  digits.append(kDecimals - decimals.size(), '0');
  for (char digit : digits) {
    if (digit < '0' || digit > '9') return std::nullopt;
    rank.parts = rank.parts * 10 + static_cast<uint64_t>(digit - '0');
  }
  if (rank.parts == 0 || rank.parts > Rank::kWhole) return std::nullopt;
  rank.text = text;
  return rank;
}

double percentile(const std::vector<double>& sorted, const Rank& rank) {
  return nearest_rank(sorted, rank.parts);
}

std::vector<Bin> histogram(const std::vector<double>& sorted) {
  std::vector<Bin> bins;
  int next = 0;  // the bin that begins at the current one's end
  for (double sample : sorted) {
    if (bins.empty() || sample >= bins.back().to) {
      while (sample >= edge(next)) ++next;
      bins.push_back({next == 0 ? 0 : edge(next - 1), edge(next), 0});
    }
    ++bins.back().count;
  }
  return bins;
}

}  // namespace sluice::tools
