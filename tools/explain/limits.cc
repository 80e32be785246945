// Limits, by the name that a text gives: options in code, and what the system allows a process.
#include <array>

#include "tools/explain/catalogue.h"

namespace sluice::tools {
namespace {

constexpr std::string_view kManyPeers = "Many clients behind one address or user; an attack.";

constexpr auto kEntries = std::to_array<Entry>({
    {"ArenaOptions::limit_bytes",
     "Most memory that an arena takes: half of the machine's, 1 TiB at most.",
     "Tensors that are held; large models.",
     "Release tensors, or set the option or SLUICE_ARENA_LIMIT=8G."},
    {"ListenOptions::idle_limit", "A connection that nobody uses for so long is closed.",
     "The program set it.", "Set a longer one, or use the connection."},
    {"ListenOptions::max_connections", "Most connections of a listener.", "Many clients.",
     "Raise it, set idle_limit, or close connections that nobody uses."},
    {"ListenOptions::max_connections_by_address", "Most connections from one address.", kManyPeers,
     "Raise it if the clients are honest."},
    {"ListenOptions::silence_limit", "A peer that calls no progress() for so long is given up.",
     "The program set it; without it a silent peer is only reported.",
     "Set a longer one, or use a ProgressThread at the peer."},
    {"PeerLimits::address_bytes", "Addresses reserved for peers' memory: 32 TiB by peer.",
     "Shared-memory peers with very large arenas.",
     "Raise it, or lower the peers' arena limits. Counted in peer.refused_address_bytes."},
    {"PeerLimits::connections", "Connections: half of the descriptors by peer, 3/4 in all.",
     kManyPeers, "Raise ulimit -n or the option. Counted in peer.refused_connections."},
    {"PeerLimits::control_bytes", "Control messages that wait for a peer: 4 MiB by peer.",
     "A peer that does not call progress().",
     "Find out why. Counted in peer.refused_control_bytes."},
    {"PeerLimits::extents", "Pieces of peers' memory that are mapped: 4,096 by peer.",
     "A peer whose arena grows in small steps.",
     "Give it larger ArenaOptions::first_extent_bytes. Counted in peer.refused_extents."},
    {"PeerLimits::grants", "Grants that are open to a peer: 16,384.", "Grants never revoked.",
     "revoke() them, or give them a deadline. Counted in peer.refused_grants."},
    {"PeerLimits::half_open", "Connections whose greeting is not over: 64 by peer, 256 in all.",
     "A port scan; a flood.",
     "Raise it only for honest clients. Counted in peer.refused_half_open."},
    {"PeerLimits::incoming_bytes", "Tensors that peers are filling: half of the arena by peer.",
     "Large fetches that arrive slowly.",
     "Raise it or the arena's limit. Counted in peer.refused_incoming_bytes."},
    {"PeerLimits::keys", "Names that a peer asked for: 65,536.", "A new name for each step.",
     "Put what changes into the key's step. Counted in peer.refused_keys."},
    {"PeerLimits::unexpected_bytes", "Messages that came before a receive: 1 MiB or more by peer.",
     "Receives that are posted late.",
     "Post them earlier, or raise it. Counted in peer.refused_unexpected_bytes."},
    {"PeerLimits::wants", "Fetches of a peer that wait for a publication: 16,384.",
     "Fetches of keys that nobody publishes.",
     "Give fetches a deadline, or raise it. Counted in peer.refused_wants."},
    {"RLIMIT_AS", "Most addresses of the process.", "ulimit -v, or a batch system.",
     "ulimit -v unlimited, or a smaller SLUICE_ARENA_LIMIT."},
    {"RLIMIT_FSIZE", "Largest file of the process; an arena is one, in memory.",
     "ulimit -f, or a batch system.", "ulimit -f unlimited."},
    {"RLIMIT_MEMLOCK", "Memory that the process may lock: RDMA and the kernel module need it.",
     "The system's default is some MiB.",
     "ulimit -l unlimited; for good: a line in /etc/security/limits.conf."},
    {"RLIMIT_NOFILE", "Open files: every connection has at least one.",
     "The shell's default is 1,024.", "ulimit -n 65536, as far as the hard limit goes."},
});

}  // namespace

std::span<const Entry> limit_entries() { return kEntries; }

}  // namespace sluice::tools
