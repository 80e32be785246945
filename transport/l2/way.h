// From here to a peer: a carrier at a free port, and where the peer is to it.
#ifndef SLUICE_L2_WAY_H_
#define SLUICE_L2_WAY_H_

#include <sluice/api/address.h>
#include <sluice/api/task.h>
#include <sluice/base/clock.h>
#include <sluice/base/result.h>
#include <sluice/l2/carrier/frames.h>
#include <sluice/runtime/context_core.h>

namespace sluice::l2 {

struct Way {
  OpenedCarrier opened;
  PeerAddress peer;
};

// `ring`: raw frames may come into a ring. Errors: those of addresses_of(), connect_udp(),
// open_packet_carrier() and open_xdp_carrier(); kInvalidArgument (no MAC address has that name).
Task<Result<Way>> open_way(ContextCore& context, Address address, bool ring, Instant deadline);

}  // namespace sluice::l2

#endif  // SLUICE_L2_WAY_H_
