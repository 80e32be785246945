#include "tools/tune/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace sluice::tools {
namespace {

double worst_of(const std::vector<SizeTimes>& sizes, uint64_t threshold, bool inclusive) {
  double worst = 1;
  for (const SizeTimes& size : sizes) {
    double better = std::min(size.below_ns, size.above_ns);
    if (better <= 0) continue;
    bool below = inclusive ? size.bytes <= threshold : size.bytes < threshold;
    worst = std::max(worst, (below ? size.below_ns : size.above_ns) / better);
  }
  return worst;
}

double quantile(std::vector<double> values, double share) {
  auto at =
      values.begin() + static_cast<std::ptrdiff_t>(static_cast<double>(values.size() - 1) * share);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

constexpr double kClearly = 1.03, kMostly = 1.01;

enum class Gain { kUnknown, kNone, kClear, kLoss };

Gain gain_of(const PairedTimes& size) {
  if (size.ratios.size() < kFewestPairs) return Gain::kUnknown;
  double middle = quantile(size.ratios, 0.5);
  if (middle >= kClearly && quantile(size.ratios, 0.25) >= kMostly) return Gain::kClear;
  return middle <= 1 / kClearly && quantile(size.ratios, 0.75) <= 1 / kMostly ? Gain::kLoss
                                                                              : Gain::kNone;
}

std::string size_text(uint64_t bytes) {
  if (bytes >= (1 << 20)) return fmt::format("{}M", bytes >> 20);
  return bytes >= (1 << 10) ? fmt::format("{}K", bytes >> 10) : std::to_string(bytes);
}

}  // namespace

uint64_t choose_reach(const std::vector<PairedTimes>& in_place,
                      const std::vector<PairedTimes>& elsewhere, uint64_t usual, uint64_t never) {
  auto is = [](Gain gain) {
    return [gain](const PairedTimes& size) { return gain_of(size) == gain; };
  };
  auto any = [&](const std::vector<PairedTimes>& sizes, Gain gain) {
    return std::any_of(sizes.begin(), sizes.end(), is(gain));
  };
  if (any(in_place, Gain::kUnknown) || any(elsewhere, Gain::kUnknown)) return usual;
  if (any(elsewhere, Gain::kLoss)) return never;
  auto last_unclear = std::find_if_not(in_place.rbegin(), in_place.rend(), is(Gain::kClear));
  return last_unclear != in_place.rbegin() ? std::prev(last_unclear)->bytes : usual;
}

Choice choose_threshold(const std::vector<SizeTimes>& sizes,
                        const std::vector<uint64_t>& candidates, bool inclusive, uint64_t usual,
                        double indifferent) {
  Choice best{.bytes = candidates.front(), .worst = worst_of(sizes, candidates.front(), inclusive)};
  for (uint64_t candidate : candidates) {
    double worst = worst_of(sizes, candidate, inclusive);
    if (worst < best.worst) best = {.bytes = candidate, .worst = worst};
  }
  double of_usual = worst_of(sizes, usual, inclusive);
  if (of_usual <= best.worst * (1 + indifferent)) return {.bytes = usual, .worst = of_usual};
  return best;
}

uint64_t choose_value(const std::vector<ValueTime>& values, uint64_t usual, double indifferent) {
  ValueTime best{.value = usual, .ns = 0};
  double of_usual = 0;
  for (const ValueTime& each : values) {
    if (each.ns <= 0) return usual;
    if (each.value == usual) of_usual = each.ns;
    if (best.ns <= 0 || each.ns < best.ns) best = each;
  }
  return of_usual > 0 && of_usual <= best.ns * (1 + indifferent) ? usual : best.value;
}

uint64_t spin_budget_ns(double wake_ns) {
  constexpr double kStep = 5'000, kLeast = 10'000, kMost = 200'000, kOfWake = 2.5;
  double steps = std::round(wake_ns * kOfWake / kStep);
  return static_cast<uint64_t>(std::clamp(steps * kStep, kLeast, kMost));
}

double typical(std::vector<double> samples) {
  constexpr size_t kFewest = 12;
  if (samples.size() < kFewest) return 0;
  auto quarter = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 4);
  std::nth_element(samples.begin(), quarter, samples.end());
  return *quarter;
}

std::string ratios_text(const std::vector<SizeTimes>& sizes) {
  std::string text;
  for (const SizeTimes& size : sizes) {
    if (size.below_ns <= 0 || size.above_ns <= 0) continue;
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", size_text(size.bytes),
                        size.below_ns / size.above_ns);
  }
  return text;
}

std::string ratios_text(const std::vector<PairedTimes>& sizes) {
  std::string text;
  for (const PairedTimes& size : sizes) {
    if (size.ratios.empty()) continue;
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", size_text(size.bytes),
                        quantile(size.ratios, 0.5));
  }
  return text;
}

std::string costs_text(const std::vector<ValueTime>& values) {
  std::string text;
  auto least = std::min_element(values.begin(), values.end(),
                                [](const ValueTime& a, const ValueTime& b) { return a.ns < b.ns; });
  if (least == values.end() || least->ns <= 0) return text;
  for (const ValueTime& each : values)
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", each.value, each.ns / least->ns);
  return text;
}

}  // namespace sluice::tools
