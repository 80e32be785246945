// What SLP counts of itself, in the counters of the house: frames that were dropped, by
// cause, and what had to be sent again. Knows no session of ours.
#ifndef SLUICE_L2_COUNTED_H_
#define SLUICE_L2_COUNTED_H_

#include <cstdint>

struct slp_counters;

namespace sluice::l2 {

// `drop`: an slp_drop, not SLP_TAKEN. "l2.dropped_header_crc" and so on, and "l2.frames_dropped".
void count_drop(int drop);

// Counts of one session that have not been added to the process's counters yet.
class SessionCounts {
 public:
  void update(const slp_counters& counters);

 private:
  uint64_t resent_ = 0, probes_ = 0, spurious_ = 0, halved_ = 0, stalled_ = 0;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_COUNTED_H_
