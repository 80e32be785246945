#include "tools/perf/nearest.h"

#include <algorithm>
#include <numeric>

namespace sluice::tools {
namespace {

// Levenshtein's distance, one row at a time.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest(const std::string& wanted, const std::vector<std::string>& known) {
  std::string best;
  size_t least = wanted.size() / 2 + 1;
  for (const std::string& word : known) {
    size_t steps = distance(wanted, word);
    // What was begun and not ended is near, however much is missing.
    if (wanted.size() > 1 && word.starts_with(wanted)) steps = std::min<size_t>(steps, 1);
    if (steps >= least) continue;
    least = steps;
    best = word;
  }
  return best;
}

}  // namespace sluice::tools
