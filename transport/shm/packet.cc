#include "transport/shm/packet.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include <sluice/base/counters.h>

namespace sluice::shm {
namespace {

constexpr const char* kOrigin = "shm/packet";

Status peer_gone(int error) {
  return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                "the peer process ended or dropped the connection; connect again", error);
}
// Descriptors in one packet: the most that the kernel sends (SCM_MAX_FD, unix(7)). With less room
// it would close the others itself, and wait wherever a peer lets a close() wait.
constexpr size_t kMostDescriptors = 253;
// Packets that may lie in a socket: more than a sender's buffer holds, at net.core.wmem_max's usual
// 208 KiB.
constexpr int kMostUnread = 4096;

Counter refused("shm.descriptors_refused");

Status corrupt(const char* why) { return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, why); }

// Takes the descriptors out of what recvmsg() gave: the first is kept, the others are closed.
size_t take_descriptors(msghdr& message, Descriptor& first) {
  size_t count = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t here = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < here; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      if (count++ == 0) {
        first = Descriptor(fd);
      } else {
        close_refused(fd);
      }
    }
  }
  return count;
}

}  // namespace

void close_refused(int fd) {
  refused.add();
  linger off{};
  (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &off, sizeof(off));  // of no socket: ENOTSOCK
  ::close(fd);
}

void close_unread(int socket) {
  ::shutdown(socket, SHUT_RD);
  int on = 1;  // tells an empty packet from the end
  (void)::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on));
  std::array<std::byte, 1> room;
  for (int i = 0; i < kMostUnread; ++i) {
    Result<Packet> packet = receive_packet(socket, room);
    if (packet.ok() && packet->fd) close_refused(packet->fd.release());
    bool more = packet.ok() ? !packet->ended
                            : packet.code() == Code::kCorrupt || packet.code() == Code::kNoMemory;
    if (!more) break;
  }
  ::close(socket);
}

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
  bool full = errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM ||
              errno == ETOOMANYREFS;
  if (full) return Status(Code::kTryAgain, Scope::kOperation, kOrigin, errno);
  return peer_gone(errno);
}

Result<Packet> receive_packet(int socket, std::span<std::byte> room) {
  iovec part{room.data(), room.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(
      cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostDescriptors) + CMSG_SPACE(sizeof(ucred))];
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t length;
  do {
    length = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (length < 0 && errno == EINTR);
  if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
    return Status(Code::kTryAgain, Scope::kOperation, kOrigin, errno);
  if (length < 0) return peer_gone(errno);
  Packet packet;
  packet.length = static_cast<size_t>(length);
  packet.ended = length == 0 && CMSG_FIRSTHDR(&message) == nullptr;
  size_t count = take_descriptors(message, packet.fd);
  const char* wrong = nullptr;
  if ((message.msg_flags & MSG_TRUNC) != 0) wrong = "a packet with too many bytes";
  if (count > 1) wrong = "a packet with too many descriptors";
  // Not the end of the peer's side, which comes without any.
  if (count > 0 && length == 0) wrong = "an empty packet with a descriptor";
  bool none_left = (message.msg_flags & MSG_CTRUNC) != 0;
  if (wrong == nullptr && !none_left) return packet;
  if (packet.fd) close_refused(packet.fd.release());
  if (wrong != nullptr) return corrupt(wrong);
  return Status(Code::kNoMemory, Scope::kEndpoint, kOrigin,
                "no descriptor for what the peer passed over its socket; raise ulimit -n");
}

}  // namespace sluice::shm
