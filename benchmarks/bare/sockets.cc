// Loopback TCP, UDP and Unix socket pairs (see sockets.h).
#include "benchmarks/bare/sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "benchmarks/bare/program.h"
#include "benchmarks/bare/wire.h"

namespace bare {
namespace {

int tcp_socket() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) die("socket");
  return fd;
}

void set_nodelay(int fd) {
  const int one = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0) die("TCP_NODELAY");
}

void set_send_buffer(int fd, uint64_t bytes) {
  const int wanted = static_cast<int>(bytes);
  if (setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof wanted) != 0) die("SO_SNDBUF");
}

SocketPair tcp_pair() {
  if (have_wire()) enter(End::kFar);
  const int listener = tcp_socket();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ipv4_of(End::kFar);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  if (bind(listener, generic, length) != 0) die("bind");
  if (listen(listener, 1) != 0) die("listen");
  if (getsockname(listener, generic, &length) != 0) die("getsockname");
  SocketPair pair;
  if (have_wire()) enter(End::kNear);
  pair.measuring_side = tcp_socket();
  if (connect(pair.measuring_side, generic, length) != 0) die("connect");
  pair.peer_side = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (pair.peer_side < 0) die("accept");
  close(listener);
  set_nodelay(pair.measuring_side);
  set_nodelay(pair.peer_side);
  return pair;
}

// A socket of that end, bound to a port of the kernel's choice, and its address.
int udp_socket(End end, sockaddr_in& address) {
  if (have_wire()) enter(end);
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) die("socket");
  address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ipv4_of(end);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  if (bind(fd, generic, length) != 0) die("bind");
  if (getsockname(fd, generic, &length) != 0) die("getsockname");
  return fd;
}

SocketPair udp_pair() {
  sockaddr_in near, far;
  SocketPair pair;
  pair.peer_side = udp_socket(End::kFar, far);
  pair.measuring_side = udp_socket(End::kNear, near);
  if (connect(pair.peer_side, reinterpret_cast<sockaddr*>(&near), sizeof near) != 0) die("connect");
  if (connect(pair.measuring_side, reinterpret_cast<sockaddr*>(&far), sizeof far) != 0)
    die("connect");
  return pair;
}

// Advances past `bytes` that the kernel took; returns the first unfinished segment.
iovec* advance(iovec* segment, iovec* end, size_t bytes) {
  while (segment != end && bytes >= segment->iov_len) bytes -= segment++->iov_len;
  if (segment != end) {
    segment->iov_base = static_cast<char*>(segment->iov_base) + bytes;
    segment->iov_len -= bytes;
  }
  return segment;
}

// Segments handed to one call; the VGG16 set has 32.
constexpr int kSegmentsPerCall = 64;

// Copies the first segments, `limit` bytes at most, to `call_segments`; returns how many.
int first_bytes(const iovec* segment, const iovec* end, size_t limit, iovec* call_segments) {
  int count = 0;
  for (; segment != end && limit != 0 && count < kSegmentsPerCall; ++segment, ++count) {
    call_segments[count] = {segment->iov_base, std::min(segment->iov_len, limit)};
    limit -= call_segments[count].iov_len;
  }
  return count;
}

template <typename Call>
void move_all(Call call, const char* what, iovec* segments, int count, size_t bytes_per_call) {
  iovec* const end = segments + count;
  iovec call_segments[kSegmentsPerCall];
  while (segments != end) {
    const int used = first_bytes(segments, end, bytes_per_call, call_segments);
    const ssize_t moved = call(call_segments, used);
    if (moved < 0 && errno == EINTR) continue;
    if (moved == 0) errno = ECONNRESET;
    if (moved <= 0) die(what);
    segments = advance(segments, end, static_cast<size_t>(moved));
  }
}

}  // namespace

SocketPair connected_pair(Family family, uint64_t send_buffer) {
  if (family == Family::kTcp) {
    const SocketPair pair = tcp_pair();
    if (send_buffer != 0) {
      set_send_buffer(pair.peer_side, send_buffer);
      set_send_buffer(pair.measuring_side, send_buffer);
    }
    return pair;
  }
  if (family == Family::kUdp) return udp_pair();
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) die("socketpair");
  return {ends[0], ends[1]};
}

int keep(const SocketPair& pair, bool peer_side) {
  close(peer_side ? pair.measuring_side : pair.peer_side);
  return peer_side ? pair.peer_side : pair.measuring_side;
}

void write_all(int socket, const void* data, size_t bytes, size_t bytes_per_call) {
  iovec segment{const_cast<void*>(data), bytes};
  writev_all(socket, &segment, 1, bytes_per_call);
}

void read_all(int socket, void* data, size_t bytes, size_t bytes_per_call) {
  iovec segment{data, bytes};
  readv_all(socket, &segment, 1, bytes_per_call);
}

void read_all_spinning(int socket, void* data, size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes != 0) {
    const ssize_t got = recv(socket, at, bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got == 0) errno = ECONNRESET;
    if (got <= 0) die("recv");
    at += got;
    bytes -= static_cast<size_t>(got);
  }
}

void writev_all(int socket, iovec* segments, int count, size_t bytes_per_call) {
  move_all([socket](const iovec* at, int n) { return writev(socket, at, n); }, "writev", segments,
           count, bytes_per_call);
}

void readv_all(int socket, iovec* segments, int count, size_t bytes_per_call) {
  move_all([socket](const iovec* at, int n) { return readv(socket, at, n); }, "readv", segments,
           count, bytes_per_call);
}

}  // namespace bare
