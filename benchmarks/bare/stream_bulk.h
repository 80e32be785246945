// A stream of large messages over a connected socket into preallocated memory.
// Shared by tcp_bulk and unix_bulk.
#pragma once

#include "benchmarks/bare/program.h"
#include "benchmarks/bare/sockets.h"

namespace bare {

// Moves options.iterations messages and prints the JSON line; returns the exit code.
int stream_bulk(Options options, Family family);

}  // namespace bare
