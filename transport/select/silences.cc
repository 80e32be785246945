#include <sluice/select/silences.h>

#include <algorithm>
#include <utility>

namespace sluice::select {

std::optional<Instant> Silences::last(std::string_view who, Instant now) const {
  auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.who == who; });
  if (found == entries_.end() || after(found->when, kRemembered) <= now) return std::nullopt;
  return found->when;
}

void Silences::add(std::string who, Instant now) {
  std::erase_if(entries_,
                [&](const Entry& e) { return e.who == who || after(e.when, kRemembered) <= now; });
  if (entries_.size() == kMost) entries_.erase(entries_.begin());
  entries_.push_back({std::move(who), now});
}

}  // namespace sluice::select
