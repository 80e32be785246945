// UDP's two ends (see udp_ends.h).
#include "benchmarks/bare/udp_ends.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "benchmarks/bare/wire.h"

namespace bare {
namespace {

constexpr size_t kMostTogether = 65'507, kMostSegments = 64;
constexpr size_t kSlots = 16;

int end_at(End end) {
  if (have_wire()) enter(end);
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = ipv4_of(end);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof own) != 0) die("a UDP socket");
  enlarge(fd);
  return fd;
}

void connect_to(int fd, int other) {
  sockaddr_in there{};
  socklen_t length = sizeof there;
  if (getsockname(other, reinterpret_cast<sockaddr*>(&there), &length) != 0) die("getsockname");
  if (connect(fd, reinterpret_cast<sockaddr*>(&there), length) != 0) die("connect");
}

size_t send_some(int fd, size_t together, const unsigned char* data, size_t bytes) {
  const ssize_t sent = send(fd, data, std::min(bytes, together), 0);
  if (sent < 0 && errno != EAGAIN && errno != ENOBUFS) die("send");
  return sent < 0 ? 0 : static_cast<size_t>(sent);
}

// Each slot lies where its datagrams belong if all before it are full; they are moved if not.
size_t receive_some(int fd, size_t together, unsigned char* data, size_t bytes) {
  std::array<mmsghdr, kSlots> messages{};
  std::array<iovec, kSlots> places;
  const size_t slots = std::clamp<size_t>(bytes / together, 1, kSlots);
  for (size_t i = 0; i < slots; ++i) {
    places[i] = {data + i * together, std::min(together, bytes - i * together)};
    messages[i].msg_hdr.msg_iov = &places[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const int came =
      recvmmsg(fd, messages.data(), static_cast<unsigned>(slots), MSG_DONTWAIT, nullptr);
  if (came < 0 && errno != EAGAIN) die("recvmmsg");
  size_t got = 0;
  for (int i = 0; i < came; ++i) {
    if (static_cast<size_t>(i) * together != got)
      std::memmove(data + got, places[static_cast<size_t>(i)].iov_base,
                   messages[static_cast<size_t>(i)].msg_len);
    got += messages[static_cast<size_t>(i)].msg_len;
  }
  return got;
}

}  // namespace

DatagramEnds udp_ends(bool joined) {
  const int far = end_at(End::kFar), near = end_at(End::kNear);
  connect_to(far, near);
  connect_to(near, far);
  const int segment = static_cast<int>(std::min<size_t>(
                have_wire() ? mtu_of(End::kFar) - 28 : kMostTogether, kMostTogether)),
            yes = 1;
  size_t together = static_cast<size_t>(segment);
  if (joined) {
    if (setsockopt(far, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment) != 0)
      die("UDP_SEGMENT");
    if (setsockopt(near, IPPROTO_UDP, UDP_GRO, &yes, sizeof yes) != 0) die("UDP_GRO");
    together *= std::min(kMostSegments, kMostTogether / together);
  }
  return {
      [=](const unsigned char* data, size_t bytes) {
        return send_some(far, together, data, bytes);
      },
      [=](unsigned char* data, size_t bytes) { return receive_some(near, together, data, bytes); }};
}

}  // namespace bare
