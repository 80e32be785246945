#include <sluice/l2/carrier/broker_wire.h>

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>

#include <sluice/base/settings.h>

namespace sluice::l2 {
namespace {

constexpr size_t kDescriptors = std::tuple_size_v<decltype(Loan::fds)>;

union Passed {
  cmsghdr header;
  char bytes[CMSG_SPACE(kDescriptors * sizeof(int))];
};

// A signal ends a wait and begins it anew, with what is left.
int milliseconds_until(Instant deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now()).count();
  return static_cast<int>(std::max<decltype(left)>(left, 0));
}

// Of a broker whose backlog is full, connect() waits so long.
bool connected(int fd, const sockaddr_un& address, Instant deadline) {
  do {
    const int left = std::max(milliseconds_until(deadline), 1);  // 0 would be no limit
    const timeval limit{left / 1000, left % 1000 * 1000};
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0)
      return true;
  } while (errno == EINTR && now() < deadline);
  return false;
}

// Bytes of the answer, with errno where there is none.
ssize_t received(int fd, msghdr& message, Instant deadline) {
  for (;;) {
    pollfd state{fd, POLLIN, 0};
    const int ready = ::poll(&state, 1, milliseconds_until(deadline));
    if (ready < 0 && errno != EINTR) return -1;
    // Also if the time is over: the last look.
    const ssize_t bytes = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT | MSG_TRUNC);
    if (bytes >= 0 || (errno != EAGAIN && errno != ECONNRESET) || now() >= deadline) return bytes;
  }
}

// Anybody can make a socket at a path of his own and have others pointed to it: what he lends would
// see what he likes.
Status trusted(int broker, const std::string& path) {
  ucred owner{};
  socklen_t length = sizeof(owner);
  if (::getsockopt(broker, SOL_SOCKET, SO_PEERCRED, &owner, &length) != 0)
    return broker_failed(Code::kUnreachable, "no broker answers at " + path, errno);
  // In a user namespace many users look like this one.
  constexpr uid_t kOverflow = 65534;
  const uid_t own = ::geteuid();
  if (owner.uid == 0 || (owner.uid == own && own != kOverflow)) return Status();
  return broker_failed(Code::kAccessDenied, "what listens at " + path + " belongs to user " +
                                                std::to_string(owner.uid) +
                                                ", not to root; see who has set SLUICE_L2_BROKER");
}

void take_descriptors(msghdr& message, Loan& loan) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int fds[kDescriptors] = {-1, -1};
    std::memcpy(fds, CMSG_DATA(header), std::min(sizeof(fds), header->cmsg_len - CMSG_LEN(0)));
    for (size_t i = 0; i < kDescriptors; ++i) loan.fds[i] = Descriptor(fds[i]);
  }
}

}  // namespace

Status broker_failed(Code code, std::string why, int error) {
  return Status(code, Scope::kOperation, "l2/broker", std::move(why), error);
}

Result<sockaddr_un> broker_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path))
    return broker_failed(Code::kInvalidArgument, "the broker's path must have 1 to 107 bytes");
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Descriptor broker_socket() {
  return Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
}

Result<BrokerRequest> receive_request(int client, const std::string& interface) {
  BrokerRequest request;
  ssize_t bytes = ::recv(client, &request, sizeof(request), MSG_TRUNC | MSG_DONTWAIT);
  if (bytes != sizeof(request) || request.magic != kBrokerMagic)
    return broker_failed(Code::kCorrupt, "no request that it understands");
  if (request.what != Ask::kPacketSocket && request.what != Ask::kXdp) return request;
  if (::strnlen(request.interface, sizeof(request.interface)) == sizeof(request.interface) ||
      interface != request.interface)
    return broker_failed(Code::kInvalidArgument, "it lends sockets at " + interface + " only");
  return request;
}

bool send_answer(int peer, const Result<Loan>& loan) {
  BrokerAnswer answer;
  answer.code = static_cast<uint32_t>(loan.code());
  std::string_view detail = loan.status().detail();
  detail.copy(answer.detail, sizeof(answer.detail) - 1);
  iovec piece{&answer, sizeof(answer)};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  Passed passed{};
  if (loan.ok()) {
    answer.port = loan->port;
    answer.number = loan->number;
    int fds[kDescriptors];
    size_t count = 0;
    for (const Descriptor& fd : loan->fds)
      if (fd.value() >= 0) fds[count++] = fd.value();
    if (count > 0) {
      message.msg_control = passed.bytes;
      message.msg_controllen = CMSG_SPACE(count * sizeof(int));
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(count * sizeof(int));
      std::memcpy(CMSG_DATA(header), fds, count * sizeof(int));
    }
  }
  return ::sendmsg(peer, &message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof(answer));
}

std::string broker_path(const std::string& interface) {
  return setting_text("SLUICE_L2_BROKER").value_or("/run/sluice-l2-" + interface);
}

bool broker_is_there(const std::string& interface) {
  struct stat found;
  return ::stat(broker_path(interface).c_str(), &found) == 0 && S_ISSOCK(found.st_mode);
}

Result<BrokerConnection> BrokerConnection::to(const std::string& interface, Duration limit) {
  std::string path = broker_path(interface);
  SLUICE_TRY(sockaddr_un address, broker_address(path));
  Descriptor fd = broker_socket();
  if (fd.value() < 0) return no_descriptor(errno);
  if (!connected(fd.value(), address, after(now(), limit)))
    return broker_failed(Code::kUnreachable, "no broker answers at " + path, errno);
  SLUICE_RETURN_IF_ERROR(trusted(fd.value(), path));
  return BrokerConnection(std::move(path), std::move(fd), limit);
}

Result<Loan> BrokerConnection::ask(const BrokerRequest& request, size_t descriptors) {
  // Refused by who we are, perhaps before this is sent or read: the answer is there all the same.
  (void)::send(fd_.value(), &request, sizeof(request), MSG_NOSIGNAL | MSG_DONTWAIT);
  BrokerAnswer answer;
  iovec piece{&answer, sizeof(answer)};
  Passed passed{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = passed.bytes;
  message.msg_controllen = sizeof(passed.bytes);
  const ssize_t bytes = received(fd_.value(), message, after(now(), limit_));
  Loan loan;
  if (bytes >= 0) take_descriptors(message, loan);
  if (bytes != sizeof(answer) || answer.magic != kBrokerMagic || answer.version != kBrokerVersion ||
      answer.code >= kCodeCount) {
    const int error = bytes < 0 ? errno : 0;
    // An answer that comes after all would be taken for the next one's. Not closed: other threads
    // ask gone(), and the number would be another descriptor's.
    ::shutdown(fd_.value(), SHUT_RDWR);
    return broker_failed(Code::kUnreachable, "no broker answers at " + path_, error);
  }
  answer.detail[sizeof(answer.detail) - 1] = '\0';
  if (answer.code != 0)
    return broker_failed(static_cast<Code>(answer.code),
                         "the broker at " + path_ + ": " + answer.detail);
  // The kernel keeps back those that the limit has no room for.
  for (size_t i = 0; i < descriptors; ++i)
    if (loan.fds[i].value() < 0) return no_descriptor(EMFILE);
  loan.port = answer.port;
  loan.number = answer.number;
  return loan;
}

bool BrokerConnection::gone() const {
  pollfd state{fd_.value(), 0, 0};
  return ::poll(&state, 1, 0) == 1 && (state.revents & (POLLHUP | POLLERR)) != 0;
}

}  // namespace sluice::l2
