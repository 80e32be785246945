// What one peer, and all peers together, can make a context keep. Options only; the
// counting is in peer_account.h.
#ifndef SLUICE_API_PEER_LIMITS_H_
#define SLUICE_API_PEER_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace sluice {

// Most of one resource. The last quarter of `total` is kept for peers that have at most a
// 64th of `total`. Zero: the default.
struct PeerLimit {
  uint64_t by_peer = 0;
  uint64_t total = 0;
};

// A peer is a source address over TCP and UDP (IPv6: its /64), a MAC address over l2 and
// kmod, a user id over shared memory; connections share their peer's limits. Addresses can
// be forged: totals hold all the same. Past a limit the peer's request is refused with
// kTryAgain, counted in `peer.refused_<resource>`, and logged once in 10 seconds.
struct PeerLimits {
  // Finished connections. Default: 3/4 of the descriptors that the process may open
  // (RLIMIT_NOFILE) in all, at most 65,536; a half of that by peer.
  PeerLimit connections;
  // Connections whose handshake is not over.
  PeerLimit half_open = {64, 256};
  // Keys that peers named in requests, up to 255 bytes each.
  PeerLimit keys = {65'536, 262'144};
  // Requests for keys that wait for a publication.
  PeerLimit wants = {16'384, 131'072};
  // Bytes of messages for which no receive was posted. Default: a quarter of the arena's
  // limit in all, at most 256 MiB; a quarter of that by peer, at least 1 MiB.
  PeerLimit unexpected_bytes;
  // Bytes of fresh tensors that peers are filling. Default: the arena's limit; half of it by peer.
  PeerLimit incoming_bytes;
  // Bytes of control messages that wait because the peer does not read.
  PeerLimit control_bytes = {uint64_t{4} << 20, uint64_t{64} << 20};
  // Grants of one-sided access that are open to the peer.
  PeerLimit grants = {16'384, 131'072};
  // Pieces of a peer's memory that are mapped here; the kernel allows 65,530 mappings
  // (vm.max_map_count).
  PeerLimit extents = {4'096, 16'384};
  // Addresses reserved for peers' memory, in bytes, of the 2^47 of a process.
  PeerLimit address_bytes = {uint64_t{1} << 45, uint64_t{1} << 46};
};

enum class PeerResource : uint8_t {
  kConnections,
  kHalfOpen,
  kKeys,
  kWants,
  kUnexpectedBytes,
  kIncomingBytes,
  kControlBytes,
  kGrants,
  kExtents,
  kAddressBytes,
};
inline constexpr size_t kPeerResourceCount = 10;

// The limits with every default filled in. arena_limit: in bytes.
PeerLimits resolve(PeerLimits limits, uint64_t arena_limit);

}  // namespace sluice

#endif  // SLUICE_API_PEER_LIMITS_H_
