// Where the ends of an IP connection are on Ethernet: by which interface it came in, and which MAC
// address the kernel sends to. Knows no session.
#ifndef SLUICE_L2_CARRIER_NEIGHBOUR_H_
#define SLUICE_L2_CARRIER_NEIGHBOUR_H_

#include <string>

#include <sluice/base/result.h>

namespace sluice::l2 {

// The interface that has the local address of a connected socket. Errors: kUnsupported: none has,
// or it is the loopback device.
Result<std::string> interface_of_connection(int fd);

// An end of a connection as the other one's Ethernet sees it.
struct Neighbour {
  std::string interface;  // ours
  std::string mac;        // the peer's, "02:00:00:00:00:0b"
};

// The peer of a connected TCP socket, by the kernel's table of neighbours (arp(7)), in which it is
// while the connection is young. Errors: kUnsupported: reached by IPv6, by a router, or on this
// machine; the detail says which.
Result<Neighbour> neighbour_of_connection(int fd);

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_NEIGHBOUR_H_
