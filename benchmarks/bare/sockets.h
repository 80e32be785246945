// Connected stream sockets between the two processes of a bare program, and
// whole reads and writes on them. Must not know what the bytes mean.
//
// Errors: every function ends the process (kExitFailed) with the system's
// message: a bare program has nobody to report to.
#pragma once

#include <sys/uio.h>

#include <cstddef>

namespace bare {

enum class Family { kTcp, kUnix };

// Two connected descriptors, made before the fork. TCP runs over 127.0.0.1 with
// TCP_NODELAY on both ends; everything else is the kernel's default.
struct SocketPair {
  int peer_side = -1;
  int measuring_side = -1;
};
SocketPair connected_pair(Family family);

// Each side closes the other's descriptor after the fork, so that an end of
// either process is seen as end of stream.
int keep(const SocketPair& pair, bool peer_side);

void write_all(int socket, const void* data, size_t bytes);
void read_all(int socket, void* data, size_t bytes);
// As read_all, but polls with MSG_DONTWAIT and never sleeps.
void read_all_spinning(int socket, void* data, size_t bytes);

// Whole scatter and gather; `segments` is consumed (bases and lengths advance).
void writev_all(int socket, iovec* segments, int count);
void readv_all(int socket, iovec* segments, int count);

}  // namespace bare
