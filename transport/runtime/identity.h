// What this process tells of itself in HELLO: host, namespaces, incarnation. Knows no transport;
// the caller adds the fields of one connection.
#ifndef SLUICE_RUNTIME_IDENTITY_H_
#define SLUICE_RUNTIME_IDENTITY_H_

#include <cstdint>
#include <span>

#include <sluice/wire/messages.h>

namespace sluice {

// A HELLO with the identity of this process filled in: versions, incarnation (random,
// new after fork), host (the kernel's boot id), namespaces, uid, pid. `arena_bytes` is
// what a peer reserves to map us; credits and rendezvous are left to the caller.
// Thread: any. Blocks: reads /proc the first time.
wire::Hello local_hello(uint64_t arena_bytes);

// The HELLO for a peer of another machine: no host, namespaces, user or process of ours. The peer
// needs none of them, and they would help an attacker. The incarnation stays: it tells when the
// process is another one.
void hide_identity(wire::Hello& hello);

// Random bytes from the kernel: tokens that a stranger must not guess.
void fill_random(std::span<std::byte> out);

// True if both run under the same kernel.
bool same_host(const wire::Hello& a, const wire::Hello& b);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_IDENTITY_H_
