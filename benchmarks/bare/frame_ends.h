// Two packet sockets for datagram_bulk.h and file_copy, over the wire of benchmarks/wire.py. Must
// not know what travels.
#pragma once

#include "benchmarks/bare/datagram_bulk.h"

namespace bare {

// Frames as long as the MTU allows, 64 of them to a call on either side; from a ring that the
// kernel fills, if asked for, instead of calls that receive.
DatagramEnds frame_ends(bool ring);

}  // namespace bare
