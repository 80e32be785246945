// Many senders, one receiver, a switch between them that marks and drops; and, as a contrast,
// what going back to the first lost frame would make of the same link. Virtual time: what
// two CPUs would show is their scheduler.
#ifndef SLUICE_TESTS_SLP_INCAST_H_
#define SLUICE_TESTS_SLP_INCAST_H_

#include <cstddef>
#include <cstdint>

namespace sluice::slp {

struct Setting {
  size_t senders = 8;
  bool pull = true;
  bool marks = true;
  uint64_t bytes_each = 4 << 20;
  double bytes_per_ns = 1.25;  // 10 Gb/s, each link
  uint64_t queue_bytes = 1 << 20, mark_above = 100 << 10;
  uint64_t delay = 5'000;  // of each hop
  uint64_t pull_budget = 256 << 10;
  uint16_t mtu = 9000;
  uint32_t lost_per_mille = 0;  // of frames towards the receiver, by chance
};

struct Result {
  double used = 0;  // share of the receiver's link, from the first byte to the last
  double jain = 0;  // of the bytes of each sender when half of all were there
  uint64_t most_queued = 0, dropped = 0, marked = 0, resent = 0, probes = 0;
};

// Ends when everything is there. Throws Wrong.
Result incast(const Setting& setting);

// One sender's share of its link, with the same delays and losses, if the receiver keeps
// nothing that is out of order: it says so at once, and the sender goes back. At its best: its
// window is never the limit, no answer is lost, none is waited for longer than it takes, and
// a frame that is lost again is told again.
double go_back_n(const Setting& setting);

}  // namespace sluice::slp

#endif  // SLUICE_TESTS_SLP_INCAST_H_
