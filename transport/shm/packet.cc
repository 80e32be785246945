#include "transport/shm/packet.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

namespace sluice::shm {
namespace {
constexpr const char* kOrigin = "shm/packet";
constexpr int kMostDescriptors = 8;  // received at once, so that surplus ones can be closed
}  // namespace

Status send_packet(int socket, std::span<const std::byte> bytes, int fd) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return Status();
  bool full = errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS;
  if (full) return Status(Code::kTryAgain, Scope::kOperation, kOrigin, errno);
  return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, "the peer process ended or dropped the connection", errno);
}

Result<Packet> receive_packet(int socket, std::span<std::byte> room) {
  iovec part{room.data(), room.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostDescriptors)];
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t length;
  do {
    length = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (length < 0 && errno == EINTR);
  if (length < 0) {
    bool none = errno == EAGAIN || errno == EWOULDBLOCK;
    return Status(none ? Code::kTryAgain : Code::kUnreachable, none ? Scope::kOperation : Scope::kEndpoint, kOrigin, errno);
  }
  Packet packet;
  packet.length = static_cast<size_t>(length);
  int count = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t descriptors = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < descriptors; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      if (count++ == 0) {
        packet.fd = fd;
      } else {
        ::close(fd);
      }
    }
  }
  if (count > 1 || (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0) {
    if (packet.fd >= 0) ::close(packet.fd);
    return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, "a packet with too many bytes or descriptors");
  }
  return packet;
}

}  // namespace sluice::shm
