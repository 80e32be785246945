// A round trip of `size` bytes over a connected socket, in the ways a process can
// wait. Shared by tcp_pingpong, udp_pingpong and unix_byte_wake.
#pragma once

#include "benchmarks/bare/program.h"
#include "benchmarks/bare/sockets.h"

namespace bare {

// How both sides wait for bytes.
enum class Waiting {
  kBlocking,       // asleep in recv
  kSpinning,       // recv with MSG_DONTWAIT in a loop
  kEpoll,          // asleep in epoll_wait, then recv
  kPoll,           // asleep in poll, then recv
  kUring,          // asleep in io_uring_enter, which has sent what was written before
  kUringSpinning,  // the same without sleeping
};

// Runs options.iterations round trips and prints the JSON line; returns the exit code.
int socket_pingpong(const Options& options, Family family, Waiting waiting);

}  // namespace bare
