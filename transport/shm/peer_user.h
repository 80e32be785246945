// Who is at the other end of a Unix socket, as the kernel says. Knows no HELLO.
#ifndef SLUICE_SHM_PEER_USER_H_
#define SLUICE_SHM_PEER_USER_H_

#include <cstdint>

#include <sluice/base/result.h>

namespace sluice::shm {

struct PeerUser {
  uint32_t uid = 0;
  uint32_t pid = 0;  // in our pid namespace; 0: it is in another one
};

// The peer's user and process. Succeeds only if the kernel proves that it is our own user in our
// own user namespace: a process that maps an extent sees all of it.
// Errors: kAccessDenied; the text says which proof is missing, and the remedy.
//
// The kernel tells users in the reader's namespace, and gives every user without a number there
// the same one (kernel.overflowuid). A peer with that number counts as another user, unless every
// user has a number, or the kernel lets us inspect the peer because all its ids are ours, in our
// own namespace.
Result<PeerUser> check_peer(int socket);

// What check_peer() reads of this process; for tests.
// True if the map of ids (/proc/PID/uid_map) leaves no id without a number.
bool maps_every_id(const char* map);

}  // namespace sluice::shm

#endif  // SLUICE_SHM_PEER_USER_H_
