// What codes, counters and limits mean, what usually causes them, and what to do. Texts only.
#ifndef SLUICE_TOOLS_EXPLAIN_CATALOGUE_H_
#define SLUICE_TOOLS_EXPLAIN_CATALOGUE_H_

#include <span>
#include <string_view>

namespace sluice::tools {

struct Entry {
  std::string_view name;  // of a Code, as Status::to_string() prints it, a counter or a limit
  std::string_view meaning;
  std::string_view causes;
  std::string_view remedy;
};

// Codes in the order of base/status.h, counters of refusals, other counters, limits; each by name.
std::span<const Entry> catalogue();
// Its parts (counters.cc, limits.cc).
std::span<const Entry> counter_entries();
std::span<const Entry> limit_entries();
// Null: unknown.
const Entry* find_entry(std::string_view name);

}  // namespace sluice::tools

#endif  // SLUICE_TOOLS_EXPLAIN_CATALOGUE_H_
