// The wire that benchmarks/wire.py has laid for a bare program: which namespace a socket is
// made in. Must not know what travels.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>

namespace bare {

enum class End { kNear, kFar };

bool have_wire();
// The namespace that sockets are made in from now on; they stay there. Exits with
// kExitNothingToRunOn without a wire.
void enter(End end);
// IPv4 addresses of the two ends, in network order; 127.0.0.1 for both without a wire.
uint32_t ipv4_of(End end);
const char* interface_of(End end);
std::array<unsigned char, 6> mac_of(End end);
unsigned mtu_of(End end);

// The largest socket buffers that can be had, up to 32 MiB.
void enlarge(int socket);

}  // namespace bare
