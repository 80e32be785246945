// Two UDP sockets for datagram_bulk.h and file_copy, over the wire of benchmarks/wire.py, else over
// the loopback device. Must not know what travels.
#pragma once

#include "benchmarks/bare/datagram_bulk.h"

namespace bare {

// Datagrams as long as the MTU allows. Joined: the kernel cuts what is sent and joins what comes
// (UDP_SEGMENT, UDP_GRO); else each datagram is sent by a call of its own.
DatagramEnds udp_ends(bool joined);

}  // namespace bare
