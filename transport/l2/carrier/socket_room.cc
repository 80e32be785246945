#include <sluice/l2/carrier/socket_room.h>

#include <sys/socket.h>

namespace sluice::l2 {
namespace {

// SLP has up to 512 frames of one session under way, each charged with its page: several
// sessions' worth. What the kernel gives less than this is lost frames under load.
constexpr int kSocketBytes = 8 << 20;

// Beyond net.core.rmem_max and wmem_max with CAP_NET_ADMIN only.
size_t enlarge_one(int fd, int force, int plain) {
  int bytes = kSocketBytes;
  if (::setsockopt(fd, SOL_SOCKET, force, &bytes, sizeof(bytes)) != 0)
    ::setsockopt(fd, SOL_SOCKET, plain, &bytes, sizeof(bytes));
  socklen_t length = sizeof(bytes);
  return ::getsockopt(fd, SOL_SOCKET, plain, &bytes, &length) == 0 ? static_cast<size_t>(bytes) : 0;
}

}  // namespace

SocketRoom enlarge(int fd) {
  SocketRoom room{.receive = enlarge_one(fd, SO_RCVBUFFORCE, SO_RCVBUF),
                  .send = enlarge_one(fd, SO_SNDBUFFORCE, SO_SNDBUF)};
  room.limited = room.receive < kSocketBytes || room.send < kSocketBytes;
  return room;
}

std::string SocketRoom::text() const {
  std::string said = "socket buffers of " + std::to_string(receive >> 10) + " KiB to receive and " +
                     std::to_string(send >> 10) + " KiB to send";
  return limited ? said +
                       " (8192 KiB were asked for: sysctl -w net.core.rmem_max=8388608 "
                       "net.core.wmem_max=8388608)"
                 : said;
}

}  // namespace sluice::l2
