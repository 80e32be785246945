// Names to socket addresses without blocking: c-ares, on the context's epoll. Its only door. Knows
// no path: it connects to nothing.
#ifndef SLUICE_RUNTIME_NAMES_H_
#define SLUICE_RUNTIME_NAMES_H_

#include <cstddef>
#include <string>
#include <vector>

#include <sluice/api/address.h>
#include <sluice/api/task.h>
#include <sluice/base/clock.h>
#include <sluice/base/result.h>
#include <sluice/base/socket_address.h>
#include <sluice/runtime/awaits.h>

namespace sluice {

// What `address` has of IP: its host, or, in l2://udp/HOST:PORT, its name. Addresses in digits ask
// nobody. Empty: a name.
std::vector<SocketAddress> address_in_digits(const Address& address);

// At least one address, in the order of RFC 6724. Reads /etc/resolv.conf and /etc/hosts for a name.
// Thread: the context's, which goes on meanwhile. Errors: kUnreachable (does not resolve),
// kTimedOut (no name server answered), kNoMemory, kCancelled; the detail names the host and the
// remedy.
Task<Result<std::vector<SocketAddress>>> addresses_of(Awaits& awaits, Address address,
                                                      Instant deadline);

// The addresses of a name share what is left of the time, so that one that swallows packets does
// not use up the turn of the next: until when the first of `left` addresses may be tried.
Instant turn_of_address(Instant now, Instant deadline, size_t left);

// For tests: the servers to ask, as "127.0.0.1:5353", in place of those of /etc/resolv.conf. Empty:
// those again.
void use_name_servers(const std::string& servers);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_NAMES_H_
