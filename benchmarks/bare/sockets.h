// Connected sockets between the two processes of a bare program, and whole reads
// and writes on them. Over UDP a read or write is whole if it is of one datagram. Must not know
// what the bytes mean.
//
// Errors: every function ends the process (kExitFailed) with the system's
// message: a bare program has nobody to report to.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

namespace bare {

enum class Family { kTcp, kUdp, kUnix };

// Two connected descriptors, made before the fork. TCP and UDP run over 127.0.0.1, or over the wire
// that benchmarks/wire.py has laid, TCP with TCP_NODELAY on both ends; everything else is the
// kernel's default.
struct SocketPair {
  int peer_side = -1;
  int measuring_side = -1;
};
// `send_buffer`: SO_SNDBUF of both, in bytes (the kernel doubles it); 0: as the kernel tunes it.
SocketPair connected_pair(Family family, uint64_t send_buffer = 0);

// Each side closes the other's descriptor after the fork, so that an end of
// either process is seen as end of stream.
int keep(const SocketPair& pair, bool peer_side);

void write_all(int socket, const void* data, size_t bytes, size_t bytes_per_call = SIZE_MAX);
void read_all(int socket, void* data, size_t bytes, size_t bytes_per_call = SIZE_MAX);
// As read_all, but polls with MSG_DONTWAIT and never sleeps.
void read_all_spinning(int socket, void* data, size_t bytes);

// One call moves at most this much in mode "chunked". On loopback TCP a writev of
// 64 MiB is slower than 64 of 1 MiB (3.5 against 4.2 to 4.7 GB/s, kernel 6.18); a
// Unix socket does not care. Both modes are run, since a yardstick must not be slow.
inline constexpr size_t kChunkBytes = 1u << 20;
inline constexpr size_t kWhole = SIZE_MAX;

// Whole scatter and gather, `bytes_per_call` at most in one system call.
// `segments` is consumed (bases and lengths advance).
void writev_all(int socket, iovec* segments, int count, size_t bytes_per_call = kWhole);
void readv_all(int socket, iovec* segments, int count, size_t bytes_per_call = kWhole);

}  // namespace bare
