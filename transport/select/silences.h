// Who did not answer over Ethernet, for a while: a network may drop the EtherType, and every
// connect would wait for that anew. Knows names and times only.
#ifndef SLUICE_SELECT_SILENCES_H_
#define SLUICE_SELECT_SILENCES_H_

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sluice/base/clock.h>

namespace sluice::select {

class Silences {
 public:
  // A repaired network is noticed within a minute, and TCP is used until then. (As long as the
  // kernel trusts a neighbour: arp(7).)
  static constexpr Duration kRemembered = std::chrono::seconds(60);
  // Each entry has cost a connect the time that it saves now. Only a process with many peers has
  // more of them, and loses the oldest.
  static constexpr size_t kMost = 64;

  // When it last gave no answer; none: never, or so long ago that it is asked again.
  std::optional<Instant> last(std::string_view who, Instant now) const;
  void add(std::string who, Instant now);

 private:
  struct Entry {
    std::string who;
    Instant when;
  };
  std::vector<Entry> entries_;  // the oldest first
};

}  // namespace sluice::select

#endif  // SLUICE_SELECT_SILENCES_H_
