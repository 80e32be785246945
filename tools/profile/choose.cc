#include "tools/profile/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice::tools::profile {
namespace {

constexpr double kSame = 1.03;
constexpr double kClearlyLess = 0.9;

// Round by round: the machine may have been slower for a while, but then for all.
double ratio_of(const std::vector<double>& of, const std::vector<double>& to) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(of.size(), to.size()); ++i) ratios.push_back(of[i] / to[i]);
  return median(std::move(ratios));
}

std::string percent_more(double ratio) {
  return ratio >= 2 ? fmt::format("{:.1f} times as long", ratio)
                    : fmt::format("{:.0f} % longer", (ratio - 1) * 100);
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Choice choose(const std::vector<Rounds>& all, size_t usual) {
  size_t fastest = 0;
  for (size_t i = 1; i < all.size(); ++i)
    if (ratio_of(all[i].seconds, all[fastest].seconds) < 1) fastest = i;
  Choice choice;
  for (const Rounds& each : all)
    choice.time_by_fastest.push_back(ratio_of(each.seconds, all[fastest].seconds));
  auto near = [&](size_t i) { return !all[i].dropped && choice.time_by_fastest[i] <= kSame; };
  auto cpu = [&](size_t i) { return median(all[i].cpu_seconds); };
  choice.index = near(usual) ? usual : fastest;
  for (size_t i = 0; i < all.size(); ++i)
    if (near(i) && cpu(i) < kClearlyLess * cpu(choice.index)) choice.index = i;

  const Rounds& chosen = all[choice.index];
  std::string same, slower;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == choice.index) continue;
    if (near(i)) {
      same += fmt::format("{}{} takes the same time, and {:.2f} of its processor time",
                          same.empty() ? "" : "; ", all[i].name, cpu(i) / cpu(choice.index));
    } else {
      slower += fmt::format("{}{} takes {}", slower.empty() ? "" : "; ", all[i].name,
                            percent_more(ratio_of(all[i].seconds, chosen.seconds)));
    }
  }
  choice.reason = slower + (slower.empty() || same.empty() ? "" : "; ") + same;
  return choice;
}

Choice choose_value(const std::vector<Rounds>& all) {
  Choice choice;
  double best = 1 / kSame;
  for (size_t i = 0; i < all.size(); ++i) {
    const double ratio = ratio_of(all[i].seconds, all[0].seconds);
    choice.time_by_fastest.push_back(ratio);
    const size_t rounds = std::min(all[i].seconds.size(), all[0].seconds.size());
    size_t faster = 0;
    for (size_t round = 0; round < rounds; ++round)
      faster += all[i].seconds[round] < all[0].seconds[round] ? 1 : 0;
    if (i == 0 || all[i].dropped || ratio > best || faster * 4 < rounds * 3) continue;
    best = ratio;
    choice.index = i;
  }
  choice.reason = choice.index == 0
                      ? "no other value was clearly faster"
                      : fmt::format("it takes {:.2f} of the time of {}", best, all[0].name);
  return choice;
}

}  // namespace sluice::tools::profile
