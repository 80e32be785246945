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

}  // namespace

Choice choose_threshold(const std::vector<SizeTimes>& sizes, const std::vector<uint64_t>& candidates, bool inclusive, uint64_t usual,
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
    std::string name = size.bytes >= (1 << 20)   ? fmt::format("{}M", size.bytes >> 20)
                       : size.bytes >= (1 << 10) ? fmt::format("{}K", size.bytes >> 10)
                                                 : std::to_string(size.bytes);
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", name, size.below_ns / size.above_ns);
  }
  return text;
}

std::string costs_text(const std::vector<ValueTime>& values) {
  std::string text;
  auto least = std::min_element(values.begin(), values.end(), [](const ValueTime& a, const ValueTime& b) { return a.ns < b.ns; });
  if (least == values.end() || least->ns <= 0) return text;
  for (const ValueTime& each : values) text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", each.value, each.ns / least->ns);
  return text;
}

}  // namespace sluice::tools
