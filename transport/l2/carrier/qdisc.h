// Whether frames may go around an interface's queueing discipline (tc(8)): a system call less
// deep, and only where nothing is gone around.
#ifndef SLUICE_L2_CARRIER_QDISC_H_
#define SLUICE_L2_CARRIER_QDISC_H_

#include <string>
#include <vector>

#include <sluice/base/status.h>

namespace sluice::l2 {

// Kinds of the disciplines of an interface, of the root and below: {"noqueue"}, {"mq", "fq_codel"}.
// Empty: the kernel does not tell. Cost: two system calls on a socket of its own.
std::vector<std::string> qdiscs_of(int interface_index);

// The one of them that limits, delays, drops or filters what leaves, or empty. What is not
// known here counts as one.
std::string shaping_qdisc(const std::vector<std::string>& kinds);

// SLUICE_L2_QDISC_BYPASS=1 asks for it.
bool qdisc_bypass_wanted();

// For a packet socket of that interface, as the disciplines are now. Errors: kUnsupported (one
// of them shapes, or they are unknown: the socket is as it was).
Status bypass_qdisc(int socket, const std::string& interface, int interface_index);

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_QDISC_H_
