// Sockets as values: an owned descriptor, its addresses, the options every connection
// gets. Knows no protocol and no event loop.
#ifndef SLUICE_TCP_SOCKET_H_
#define SLUICE_TCP_SOCKET_H_

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <sluice/base/clock.h>
#include <sluice/base/descriptor.h>
#include <sluice/base/result.h>
#include <sluice/base/socket_address.h>

namespace sluice::tcp {

// 16 bytes; IPv4 as it is mapped into IPv6. Other families: zeros.
in6_addr address_bytes(const SocketAddress& address);
SocketAddress local_address(int fd);
SocketAddress peer_address(int fd);

// Whether the peer is on this machine, as the kernel saw it connect: from a loopback address, or
// from the address that it reached. No packet from elsewhere has either (the kernel drops those
// with such a source).
bool peer_is_local(int fd);

// A non-blocking, close-on-exec stream socket. Errors: kNoMemory (descriptor limit: the
// detail says how to raise it), kUnsupported (no such address family here).
Result<Descriptor> open_stream_socket(int family);
// Errors of calls that need a descriptor: kNoMemory with the remedy.
Status descriptor_error(const char* origin, int os_error);

// How long a peer's kernel may say nothing to what was sent to it.
inline constexpr Duration kUnpluggedAfter = std::chrono::seconds(3);

// No delay; keepalives that find an unplugged idle peer after kUnpluggedAfter.
// TCP_USER_TIMEOUT is not used: it also ends a connection whose peer is alive but does
// not read (its window stays closed, tcp(7)), and a long computation looks like that.
Status set_connection_options(int fd);

// The shortest round trip that the kernel has lately seen; zero: it has seen none.
Duration round_trip(int fd);

// Within one machine: bounds what may be under way to what the caches hold.
void set_same_host_options(int fd);

// What the kernel knows about the answers to what was sent.
enum class Answered : uint8_t {
  kAll,        // nothing is out
  kWaiting,    // something is, and its answer is not overdue
  kUnplugged,  // nothing came for kUnpluggedAfter although the kernel repeated itself
};
Answered answered(int fd);

// Sends a small frame at once, all or nothing for all practical purposes: used on
// connections whose buffers are empty. False: the peer is gone or does not read.
bool send_all_now(int fd, const void* data, size_t length);
// sendmsg(2), never waits. `flags`: further ones.
ssize_t write_some(int fd, std::span<iovec> pieces, int flags = 0);

// Cuts the pieces off behind `most` bytes, and makes `most` what they have. Returns how many are
// left.
size_t shorten(std::span<iovec> pieces, size_t& most);

// Ends a connection so that what was just written still arrives: closing a socket with
// unread bytes makes the kernel send a reset, which can overtake them.
void close_gently(Descriptor fd);

}  // namespace sluice::tcp

#endif  // SLUICE_TCP_SOCKET_H_
