#include "tools/perf/flags/nearest.h"

#include <algorithm>
#include <numeric>

namespace sluice::tools {
namespace {

// Letters that two words must begin with, dashes counted, to be told from chance.
constexpr size_t kTelling = 5;

// Letters changed, left out, added, or swapped with their neighbour (Damerau 1964), three rows at a
// time.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, last);
    std::swap(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t changed = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({changed, last[j] + 1, row[j - 1] + 1});
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

// Letters that both begin with.
size_t common_beginning(const std::string& a, const std::string& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                             a.begin());
}

}  // namespace

std::string nearest(const std::string& wanted, const std::vector<std::string>& known) {
  std::string best;
  // Half of its letters may be wrong: --frob is not --port.
  const size_t letters = wanted.size() - std::min(wanted.find_first_not_of('-'), wanted.size());
  size_t least = letters / 2 + 1, begun = 0;
  for (const std::string& word : known) {
    size_t steps = distance(wanted, word), same = common_beginning(wanted, word);
    // What was begun and not ended is near, however much is missing; and so is what goes on:
    // --iterations for --iters.
    bool begins = wanted.size() > 1 && word.starts_with(wanted);
    bool goes_on = same + 1 >= word.size() && same >= kTelling;
    if (begins || goes_on) steps = std::min<size_t>(steps, 1);
    if (steps > least || (steps == least && (best.empty() || same <= begun))) continue;
    least = steps;
    begun = same;
    best = word;
  }
  return best;
}

}  // namespace sluice::tools
