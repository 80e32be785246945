#include <sluice/l2/broker.h>

#include <errno.h>
#include <net/if.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/broker";
constexpr uint32_t kMagic = 0x42504c53;  // "SLPB"
constexpr time_t kAskerSeconds = 1, kBrokerSeconds = 2;
constexpr int kBacklog = 64;
constexpr int kTriesForPort = 64;
// Whoever may ask is decided by uid, not by who can reach the file.
constexpr mode_t kMode = 0666;

Counter lent("l2.sockets_lent");
Counter refused("l2.sockets_refused");

// One packet each way over SOCK_SEQPACKET; the answer comes with two descriptors if it is ok.
struct Request {
  uint32_t magic;
  uint16_t version, port;
  char interface[IFNAMSIZ];
};
struct Answer {
  uint32_t magic;
  uint16_t version, port;
  uint32_t code;
  char detail[244];
};
constexpr uint16_t kVersion = 1;
constexpr int kDescriptors = 2;

Status failed(Code code, std::string why, int error = 0) { return Status(code, Scope::kOperation, kOrigin, std::move(why), error); }

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) return failed(Code::kInvalidArgument, "the broker's path must have 1 to 107 bytes");
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Fd unix_socket() { return Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

void limit_waits(int fd, time_t seconds) {
  timeval limit{seconds, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

union Passed {
  cmsghdr header;
  char bytes[CMSG_SPACE(kDescriptors * sizeof(int))];
};

bool send_answer(int peer, Answer& answer, const PacketSocket* socket) {
  iovec piece{&answer, sizeof(answer)};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  Passed passed{};
  if (socket != nullptr) {
    int fds[kDescriptors] = {socket->fd.value(), socket->claim.value()};
    message.msg_control = passed.bytes;
    message.msg_controllen = sizeof(passed.bytes);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(fds));
    std::memcpy(CMSG_DATA(header), fds, sizeof(fds));
  }
  return ::sendmsg(peer, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(answer));
}

// The descriptors that came, closed again where they are not two.
PacketSocket take_descriptors(msghdr& message) {
  PacketSocket socket;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int fds[kDescriptors] = {-1, -1};
    std::memcpy(fds, CMSG_DATA(header), std::min(sizeof(fds), header->cmsg_len - CMSG_LEN(0)));
    socket.fd = Fd(fds[0]);
    socket.claim = Fd(fds[1]);
  }
  return socket;
}

}  // namespace

std::string broker_path(const std::string& interface) {
  const char* given = std::getenv("SLUICE_L2_BROKER");
  return given != nullptr ? given : "/run/sluice-l2-" + interface;
}

bool broker_is_there(const std::string& interface) {
  struct stat found;
  return ::stat(broker_path(interface).c_str(), &found) == 0 && S_ISSOCK(found.st_mode);
}

Result<PacketSocket> borrow_packet_socket(const std::string& interface, uint16_t port) {
  std::string path = broker_path(interface);
  SLUICE_TRY(sockaddr_un address, address_of(path));
  Request request{.magic = kMagic, .version = kVersion, .port = port, .interface = {}};
  if (interface.size() >= sizeof(request.interface)) return failed(Code::kInvalidArgument, "there is no interface '" + interface + "'");
  std::memcpy(request.interface, interface.data(), interface.size());
  Fd fd = unix_socket();
  if (fd.value() < 0) return no_descriptor(errno);
  limit_waits(fd.value(), kBrokerSeconds);
  if (::connect(fd.value(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return failed(Code::kUnreachable, "no broker answers at " + path, errno);
  }
  // Refused by who we are, perhaps before this is sent or read: the answer is there all the same.
  (void)::send(fd.value(), &request, sizeof(request), MSG_NOSIGNAL);
  Answer answer{};
  iovec piece{&answer, sizeof(answer)};
  Passed passed{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = passed.bytes;
  message.msg_controllen = sizeof(passed.bytes);
  ssize_t bytes = ::recvmsg(fd.value(), &message, MSG_CMSG_CLOEXEC);
  if (bytes < 0 && errno == ECONNRESET) bytes = ::recvmsg(fd.value(), &message, MSG_CMSG_CLOEXEC);
  PacketSocket socket = take_descriptors(message);
  if (bytes != sizeof(answer) || answer.magic != kMagic || answer.version != kVersion || answer.code >= kCodeCount) {
    return failed(Code::kUnreachable, "no broker answers at " + path, bytes < 0 ? errno : 0);
  }
  answer.detail[sizeof(answer.detail) - 1] = '\0';
  if (answer.code != 0) return failed(static_cast<Code>(answer.code), "the broker at " + path + ": " + answer.detail);
  if (socket.fd.value() < 0 || socket.claim.value() < 0) return failed(Code::kUnreachable, "the broker at " + path + " passed no sockets; raise ulimit -n");
  socket.port = answer.port;
  return socket;
}

Result<Broker> Broker::open(const BrokerOptions& options) {
  SLUICE_RETURN_IF_ERROR(open_packet_socket(options.interface, 0, true).status());  // what cannot work is told at once
  SLUICE_TRY(sockaddr_un address, address_of(options.path));
  Fd fd = unix_socket();
  if (fd.value() < 0) return no_descriptor(errno);
  struct stat found;
  if (::lstat(options.path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode)) ::unlink(options.path.c_str());
  bool listens = ::bind(fd.value(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && ::chmod(options.path.c_str(), kMode) == 0 &&
                 ::listen(fd.value(), kBacklog) == 0;
  if (!listens) return failed(Code::kInvalidArgument, "the broker cannot listen at " + options.path, errno);
  return Broker(options, std::move(fd));
}

Broker::~Broker() {
  if (listener_.value() >= 0) ::unlink(options_.path.c_str());
}

Result<PacketSocket> Broker::lend(int peer) {
  ucred user{};
  socklen_t length = sizeof(user);
  bool known = ::getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &user, &length) == 0;
  // Before a word of his is read.
  if (!known || (user.uid != 0 && std::find(options_.users.begin(), options_.users.end(), user.uid) == options_.users.end())) {
    return failed(Code::kAccessDenied, "it lends to root and to those named by --uid, not to " + std::to_string(user.uid));
  }
  Request request{};
  ssize_t bytes = ::recv(peer, &request, sizeof(request), MSG_TRUNC);
  if (bytes != sizeof(request) || request.magic != kMagic || request.version != kVersion) return failed(Code::kCorrupt, "no request that it understands");
  if (::strnlen(request.interface, sizeof(request.interface)) == sizeof(request.interface) || options_.interface != request.interface) {
    return failed(Code::kInvalidArgument, "it lends sockets at " + options_.interface + " only");
  }
  auto of_another = [&](uint16_t port) { return lent_.count(port) != 0 && lent_.at(port) != user.uid; };
  if (of_another(request.port)) return failed(Code::kInvalidArgument, "port " + std::to_string(request.port) + " was lent to another user");
  Result<PacketSocket> socket = open_packet_socket(options_.interface, request.port, true);
  for (int tries = 0; socket.ok() && of_another(socket->port) && tries < kTriesForPort; ++tries) socket = open_packet_socket(options_.interface, 0, true);
  if (!socket.ok()) return socket;
  if (of_another(socket->port)) return failed(Code::kTryAgain, "no port is free");
  lent_[socket->port] = user.uid;
  return socket;
}

Status Broker::serve_one() {
  Fd peer(::accept4(listener_.value(), nullptr, nullptr, SOCK_CLOEXEC));
  if (peer.value() < 0) return errno == EINTR || errno == ECONNABORTED ? Status() : no_descriptor(errno);
  limit_waits(peer.value(), kAskerSeconds);
  Result<PacketSocket> socket = lend(peer.value());
  (socket.ok() ? lent : refused).add();
  Answer answer{.magic = kMagic, .version = kVersion, .port = socket.ok() ? socket->port : uint16_t{0}, .code = static_cast<uint32_t>(socket.code()), .detail = {}};
  std::string_view detail = socket.status().detail();
  std::memcpy(answer.detail, detail.data(), std::min(detail.size(), sizeof(answer.detail) - 1));
  (void)send_answer(peer.value(), answer, socket.ok() ? &*socket : nullptr);
  return socket.status();
}

}  // namespace sluice::l2
