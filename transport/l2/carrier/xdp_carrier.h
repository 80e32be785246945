// SLP's frames by AF_XDP: they come into memory of this process, past the kernel's network stack.
#ifndef SLUICE_L2_CARRIER_XDP_CARRIER_H_
#define SLUICE_L2_CARRIER_XDP_CARRIER_H_

#include <cstdint>
#include <string>

#include <sluice/base/result.h>
#include <sluice/l2/carrier/frames.h>

namespace sluice::l2 {

// As open_packet_carrier(), by AF_XDP and nothing else: there is no fallback. Blocks: the first
// port of an interface, for some ten milliseconds. Errors: those of XdpInterface::of() and open();
// kInvalidArgument: the port is taken.
Result<OpenedCarrier> open_xdp_carrier(const std::string& interface, uint16_t port);

// Whether this process may open such ports: ok, or what to do about it.
Status xdp_allowed();

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_XDP_CARRIER_H_
