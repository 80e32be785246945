// Large messages as datagrams from preallocated memory into preallocated memory, with no
// protocol at all: nothing is lost, because the sender sees in shared memory how far the
// receiver is. Shared by udp_bulk and frame_bulk.
#pragma once

#include <functional>

#include "benchmarks/bare/program.h"

namespace bare {

struct DatagramEnds {
  // Sends some of [data, data + bytes); returns how much (0: no room now).
  std::function<size_t(const unsigned char* data, size_t bytes)> send;
  // Receives what there is, in order, at most `bytes`; returns how much (0: nothing now).
  std::function<size_t(unsigned char* data, size_t bytes)> receive;
};

// Moves options.iterations messages and prints the JSON line; returns the exit code.
int datagram_bulk(const Options& options, const DatagramEnds& ends);

}  // namespace bare
