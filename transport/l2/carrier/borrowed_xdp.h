// AF_XDP at an interface by a broker's rights. Knows no memory of frames.
#ifndef SLUICE_L2_CARRIER_BORROWED_XDP_H_
#define SLUICE_L2_CARRIER_BORROWED_XDP_H_

#include <memory>
#include <string>

#include <sluice/base/result.h>
#include <sluice/l2/carrier/xdp_source.h>

namespace sluice::l2 {

// The broker detaches the program and closes its sockets when the last copy of this connection
// closes. This blocks until it answers, 10 s at most, and each later call 2 s at most: then the
// loan ends. Errors: what the broker refuses, kUnreachable (it does not answer), kAccessDenied
// (also: it is another user's).
Result<std::unique_ptr<XdpSource>> borrow_xdp(const std::string& interface);

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_BORROWED_XDP_H_
