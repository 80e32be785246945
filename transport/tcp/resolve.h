// Names to socket addresses, by Boost.Asio's synchronous resolver. The only door to
// Boost in this room; no Boost type leaves resolve.cc.
#ifndef SLUICE_TCP_RESOLVE_H_
#define SLUICE_TCP_RESOLVE_H_

#include <vector>

#include <sluice/api/address.h>
#include <sluice/base/result.h>
#include <sluice/tcp/socket.h>

namespace sluice::tcp {

// Every address of address.host, in the system's order of preference; at least one.
// Blocks: an address in digits never; a name for as long as the system's resolver
// takes (resolv.conf(5): timeout and attempts), since it cannot be interrupted.
// Errors: kUnreachable; the detail names the host and the remedy.
Result<std::vector<SocketAddress>> resolve(const Address& address);

}  // namespace sluice::tcp

#endif  // SLUICE_TCP_RESOLVE_H_
