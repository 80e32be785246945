#include "tools/explain/catalogue.h"

#include <algorithm>
#include <array>
#include <vector>

#include <sluice/base/status.h>

namespace sluice::tools {
namespace {

constexpr std::string_view kOtherPeersGoOn =
    "One peer has reached its limit, or all peers together have. Other peers go on.";
constexpr std::string_view kPeerCauses =
    "A client that leaks or loops; many clients behind one address or user; an attack.";

constexpr auto kEntries = std::to_array<Entry>({
    {"kOk", "The call or operation succeeded.", "-", "Nothing."},
    {"kTryAgain", "A queue or table is full. Nothing was done, and nothing was consumed.",
     "More operations are posted than complete; progress() is not called often enough; the peer "
     "does not read; the peer's limit for us is reached.",
     "Call progress(), then repeat the call. If it does not end: the text names the table and its "
     "limit."},
    {"kNoMemory", "A memory limit was reached.",
     "Tensors are held longer than needed; the arena's limit is too low; locked memory is limited "
     "(RLIMIT_MEMLOCK).",
     "Release tensors, or raise the limit that the text names."},
    {"kUnsupported", "This path, machine or build cannot do it.",
     "A device or kernel module is missing; a requirement (zero_copy, rdma, sealed) that no path "
     "meets.",
     "sluice info --explain HOST says what is missing. Choose another path, or relax the "
     "requirement."},
    {"kInvalidArgument", "The call is wrong. Nothing was done, and nothing was consumed.",
     "A wrong address, size, key or shape.", "Correct what the text names."},
    {"kWrongState", "The handle, endpoint or step is over, or the process was forked.",
     "An endpoint that closed; an empty or moved-from handle; a step that was retired; a context "
     "used in a child.",
     "Connect again, fetch a later step, or open a context in the child: the text says which."},
    {"kUnreachable", "The peer is dead or cannot be found.",
     "Its program ended or was never started; wrong host or port; a firewall; a cable.",
     "Check the address and that the peer runs, then connect again."},
    {"kTimedOut", "The deadline passed, and the operation took no effect.",
     "The peer is slow, stopped, or does not call progress(); nobody published the key.",
     "Look at EndpointInfo::peer_silent. Give a longer deadline only if the work takes that long."},
    {"kOutcomeUnknown", "The operation may or may not have taken effect.",
     "The connection ended, or the deadline passed, after data was sent and before the peer "
     "answered.",
     "Ask the peer what it has, or make the operation repeatable, then connect again."},
    {"kCancelled", "The caller gave the operation up.",
     "cancel(), a dropped handle, close() of the endpoint, or the peer withdrew its offer.",
     "Nothing, if you meant it."},
    {"kAccessDenied", "A right is missing.",
     "A grant that was revoked, expired or is another's; a range outside it; KeyRights or the "
     "accept hook of the peer.",
     "Ask the peer for a grant or key right that covers the access."},
    {"kCorrupt", "The peer sent something that breaks the protocol. The connection is over.",
     "Another program at that port; different versions; a bug; an attack.",
     "Check the address and both versions (sluice version). If both are right, report it with the "
     "text."},
    {"kInternal", "A bug in sluice.", "-", "Report it with the text and the version."},

    {"allocator.refused_limit", "Requests that the arena's limit refused.",
     "Tensors are held; the limit is too low.",
     "Release tensors, or raise ArenaOptions::limit_bytes or SLUICE_ARENA_LIMIT."},
    {"allocator.refused_quota", "Requests that a quota refused.",
     "The owner of the quota holds too much.",
     "Release or receive what it holds, or give a larger Quota."},
    {"allocator.refused_system", "Extents for which the machine or its cgroup had no memory.",
     "Other programs; memory.max of the cgroup.",
     "Free memory, raise memory.max, or lower ArenaOptions::limit_bytes."},
    {"exchange.keys_refused", "Names refused because the program has used 65,536.",
     "A name for each step.", "Put what changes into the key's step."},
    {"exchange.wants_denied", "Fetches of peers that KeyRights or ExchangeOptions::allow refused.",
     "A peer asks for what it may not have.",
     "Correct the rights given with Exchange::add, or the peer."},
    {"kmod.access_refused", "One-sided accesses of peers that the kernel module refused.",
     "A revoked or wrong key; a range outside the grant.",
     "Correct the peer, or watch for an attack."},
    {"l2.access_refused", "One-sided accesses of peers refused over Ethernet frames.",
     "A revoked or wrong key; a range outside the grant.",
     "Correct the peer, or watch for an attack."},
    {"l2.askers_silent",
     "Programs that connected to the broker and did not ask in time, or made room for others.",
     "A program that hangs; a flood.", "Find it by the user in the broker's log."},
    {"l2.qdisc_bypasses_refused", "SLUICE_L2_QDISC_BYPASS was set and the kernel refused.",
     "The device does not allow it.",
     "Unset the variable; frames go through the queueing discipline."},
    {"l2.rings_refused", "Ports that got no receive ring from the kernel.",
     "Too little memory; an old kernel.",
     "Nothing: frames are received one call at a time, slower."},
    {"l2.sockets_refused", "Requests for sockets that the broker refused.",
     "The user is not named by --uid; the interface by --interface; its share is used up.",
     "Start sluice broker with that user and interface."},
    {"l2.udp_segments_refused", "Groups of datagrams that had to be sent one by one.",
     "The device computes no checksums; the path's MTU became smaller.", "Nothing: it is slower."},
    {"listener.refused_by_program", "Peers that ListenOptions::accept refused.",
     "The program's own rule.", "Nothing, if the rule is right."},
    {"listener.refused_full", "Peers refused because the listener has as many as it may.",
     "More clients than ListenOptions::max_connections or max_connections_by_address.",
     "Raise the limit, set idle_limit, or close connections that nobody uses."},
    {"peer.refused_address_bytes", kOtherPeersGoOn, "Shared-memory peers with very large arenas.",
     "Raise PeerLimits::address_bytes, or lower the peers' arena limits."},
    {"peer.refused_connections", kOtherPeersGoOn, kPeerCauses,
     "Raise PeerLimits::connections or the open-files limit (ulimit -n), or close connections."},
    {"peer.refused_control_bytes", kOtherPeersGoOn, "A peer that does not read what we answer.",
     "Find out why it does not call progress(). Its connection was ended."},
    {"peer.refused_extents", kOtherPeersGoOn, "A peer whose arena grew in very small steps.",
     "Give it larger ArenaOptions::first_extent_bytes, or raise PeerLimits::extents."},
    {"peer.refused_grants", kOtherPeersGoOn, "Grants that are never revoked.",
     "revoke() what is not used, or give grants a deadline."},
    {"peer.refused_half_open", kOtherPeersGoOn,
     "Connections that never finish their greeting: a port scan, a flood, a very slow network.",
     "Raise PeerLimits::half_open only if the clients are honest."},
    {"peer.refused_incoming_bytes", kOtherPeersGoOn, "Large fetches that arrive slowly.",
     "Raise PeerLimits::incoming_bytes or the arena's limit."},
    {"peer.refused_keys", kOtherPeersGoOn, "A peer that asks for a new name each step.",
     "Put what changes into the key's step, or raise PeerLimits::keys."},
    {"peer.refused_unexpected_bytes", kOtherPeersGoOn, "Messages come before a receive is posted.",
     "Post receives earlier, or raise PeerLimits::unexpected_bytes."},
    {"peer.refused_wants", kOtherPeersGoOn, "Fetches of keys that nobody publishes.",
     "Give fetches a deadline, or raise PeerLimits::wants."},
    {"session.access_denied", "One-sided accesses of peers that the session refused.",
     "A revoked or wrong key; a range outside the grant.",
     "Correct the peer, or watch for an attack."},
    {"session.copies_overdue",
     "Peers over shared memory that did not stop copying when a grant was revoked; their "
     "connections were ended.",
     "A peer that is stopped, or hostile.", "Let it connect again."},
    {"session.fences_overdue", "Operations that a device had not finished at their deadline.",
     "A slow or broken device; a peer that does not answer.",
     "See the endpoint's text; the memory is not reused before the connection has ended."},
    {"session.peers_silent",
     "Peers that answer keepalives while their programs do not call progress().",
     "A long computation on the thread of the context; a debugger.",
     "Use a ProgressThread there, or call progress() in between."},
    {"session.refused_table_full",
     "Posts refused because as many operations are outstanding as an endpoint may have.",
     "progress() is not called often enough.", "Call progress(), then post again."},
    {"session.wants_refused_table_full",
     "Fetches of peers refused because as many already wait as may.",
     "Fetches of keys that nobody publishes.",
     "Publish earlier, give fetches a deadline, or raise PeerLimits::wants."},
    {"session.windows_refused", "Operations for which the device opened no memory window.",
     "The device has too few windows or regions.", "Post fewer operations at once."},
    {"shm.descriptors_refused",
     "Descriptors that peers passed where none belongs. They were closed.",
     "Another program at that name; an attack.", "Nothing; find the peer by its user."},
    {"shm.meetings_refused", "Shared-memory peers that were refused.",
     "Another user or user namespace; limits; no descriptor; a process that may not be inspected.",
     "The log names the first; sluice:// takes the next path."},
    {"tcp.greetings_refused", "TCP connections refused before their greeting ended.",
     "Limits; another program; different versions.", "The log names the cause."},
    {"tcp.streams_overdue",
     "TCP peers that ended their connection, and whose further streams brought nothing for 4 s.",
     "A broken or hostile peer; a line that was cut for longer.",
     "If operations failed then, look at the line; else nothing."},
    {"tcp.streams_refused", "Further TCP streams that a peer or the network refused.",
     "The listener is closed or has all its connections; a firewall.",
     "Nothing is lost: bulk goes by one stream. For more, raise ListenOptions::max_connections."},
    {"verbs.access_refused_by_peer", "Our accesses that the peer's device refused.",
     "A revoked or wrong key.", "Ask the peer for a grant that covers the access."},
    {"verbs.access_refused_to_peer",
     "Connections ended because the peer tried to reach what it was not granted.",
     "A revoked or wrong key; an attack.", "Correct the peer."},
    {"verbs.flushes_overdue", "Queue pairs whose device did not report all ends in time.",
     "A device that was unplugged or is broken.", "Look at the kernel's log."},
    {"verbs.lanes_refused", "Further queue pairs of a connection that were refused.",
     "SLUICE_RDMA_QUEUE_PAIRS differs; a late request.", "Set the same number at both ends."},
    {"verbs.moderation_refused", "Completion queues whose device refuses moderation.",
     "Soft-RoCE and soft-iWARP have none.", "Unset SLUICE_RDMA_MODERATION there."},
    {"verbs.peer_access_refused", "Events of a device that refused a peer's access.",
     "A revoked or wrong key; an attack.", "Correct the peer."},
    {"verbs.refused", "RDMA connections that were refused.",
     "Different versions; limits; no memory for a queue pair.", "The log names the cause."},
    {"verbs.registrations_refused", "Memory that the device did not register.",
     "RLIMIT_MEMLOCK; the device's limit of regions.", "Raise ulimit -l, as the text says."},
    {"verbs.stripes_refused",
     "Windows named on a queue pair that the connection does not have. The connection was ended.",
     "A peer that breaks the protocol.", "Report it with both versions."},
});

static_assert(kCodeCount == 13,
              "a new code needs an entry, and its name in tests/tools/explain_command_test.py");

}  // namespace

std::span<const Entry> catalogue() {
  static const std::vector<Entry> all = [] {
    std::vector<Entry> joined(kEntries.begin(), kEntries.end());
    for (std::span<const Entry> more : {counter_entries(), limit_entries()})
      joined.insert(joined.end(), more.begin(), more.end());
    return joined;
  }();
  return all;
}

const Entry* find_entry(std::string_view name) {
  const std::span<const Entry> all = catalogue();
  auto found =
      std::find_if(all.begin(), all.end(), [&](const Entry& entry) { return entry.name == name; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace sluice::tools
