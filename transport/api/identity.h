// What this process says about itself in HELLO: which host, which namespaces, which
// life. Knows no transport; the caller adds what belongs to one connection.
#ifndef SLUICE_API_IDENTITY_H_
#define SLUICE_API_IDENTITY_H_

#include <cstdint>
#include <span>

#include <sluice/wire/messages.h>

namespace sluice {

// A HELLO with the identity of this process filled in: versions, incarnation (random,
// new after fork), host (the kernel's boot id), namespaces, uid, pid. `arena_bytes` is
// what a peer reserves to map us; credits and rendezvous are left to the caller.
// Thread: any. Blocks: reads /proc the first time.
wire::Hello local_hello(uint64_t arena_bytes);

// What a peer of another machine is told: no host, namespaces, user or process of ours. It needs
// none of them, and they help who looks for a way in. The incarnation stays: it says when we are
// another process.
void hide_identity(wire::Hello& hello);

// Random bytes from the kernel: tokens that a stranger must not guess.
void fill_random(std::span<std::byte> out);

// True if both run under the same kernel.
bool same_host(const wire::Hello& a, const wire::Hello& b);

}  // namespace sluice

#endif  // SLUICE_API_IDENTITY_H_
