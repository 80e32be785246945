#include <sluice/l2/counted.h>

#include <utility>

#include <sluice/base/counters.h>

#include "kernel_compat/slp/slp.h"

namespace sluice::l2 {
namespace {

// In the order of slp_drop.
Counter drops[] = {
    Counter("l2.dropped_taken"),  // none is
    Counter("l2.dropped_runt"),        Counter("l2.dropped_version"),
    Counter("l2.dropped_type"),        Counter("l2.dropped_flags"),
    Counter("l2.dropped_length"),      Counter("l2.dropped_header_crc"),
    Counter("l2.dropped_payload_crc"), Counter("l2.dropped_session"),
    Counter("l2.dropped_state"),       Counter("l2.dropped_unsealed"),
    Counter("l2.dropped_forged"),      Counter("l2.dropped_repeated"),
    Counter("l2.dropped_number"),      Counter("l2.dropped_ack"),
    Counter("l2.dropped_content"),     Counter("l2.dropped_transfer"),
    Counter("l2.dropped_range"),       Counter("l2.dropped_room"),
};
static_assert(sizeof(drops) / sizeof(drops[0]) == SLP_DROPS);

Counter dropped("l2.frames_dropped");  // in all
Counter resent("l2.resent");
Counter probes("l2.probes");
Counter spurious("l2.resent_needlessly");
Counter halved("l2.frames_halved");
Counter stalled(
    "l2.pulls_stalled");  // what a peer was asked for did not come in time: others have its budget

void add_new(Counter& to, uint64_t& seen, uint64_t value) {
  if (value != seen) to.add(value - std::exchange(seen, value));
}

}  // namespace

void count_drop(int drop) {
  dropped.add();
  drops[drop].add();
}

void SessionCounts::update(const slp_counters& counters) {
  add_new(resent, resent_, counters.resent);
  add_new(probes, probes_, counters.probes);
  add_new(spurious, spurious_, counters.spurious);
  add_new(halved, halved_, counters.frames_halved);
  add_new(stalled, stalled_, counters.pulls_stalled);
}

}  // namespace sluice::l2
