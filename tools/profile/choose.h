// Names a profile from what replays took. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace sluice::tools::profile {

// What one profile took in each round. A round has all of them, or those that were not dropped.
struct Rounds {
  std::string name;
  std::vector<double> seconds, cpu_seconds;
  bool dropped = false;  // far behind the others in the first round, and not played again
};

struct Choice {
  size_t index = 0;
  std::string reason;
  // Median of the rounds' times by those of the fastest profile, for each profile.
  std::vector<double> time_by_fastest;
};

double median(std::vector<double> values);

// The fastest. Of those that are within 3 % of it, `usual`, or the one with the least processor
// time if that is less than 0.9 of the usual one's. Requires: a round of each.
Choice choose(const std::vector<Rounds>& all, size_t usual);

// The value that is clearly faster than the first: by 3 % in the median round and faster in three
// quarters of them. The first if there is none.
Choice choose_value(const std::vector<Rounds>& all);

}  // namespace sluice::tools::profile
