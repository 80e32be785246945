#include <sluice/l2/carrier/broker.h>

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/settings.h>

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/broker";
constexpr uint32_t kMagic = 0x42504c53;  // "SLPB"
constexpr time_t kBrokerSeconds = 2;
constexpr int kBacklog = 64;
// A connected client has so long to ask, and so many may wait at once.
constexpr Duration kAskerLimit = std::chrono::seconds(1);
constexpr int kLookMs = 500;
constexpr size_t kMostAskers = 64;
constexpr int kOutOfDescriptorsMs = 100;
// Descriptors for the process itself, for a socket to be lent, its claim and the kernel's table.
// The others are for clients.
constexpr rlim_t kOwnDescriptors = 24;
// Users times causes; beyond these refusals only count.
constexpr size_t kMostTold = 1024;
constexpr int kTriesForPort = 64;
// The uid decides who may ask, not access to the file.
constexpr mode_t kMode = 0666;

Counter lent("l2.sockets_lent");
Counter refused("l2.sockets_refused");
Counter silent("l2.askers_silent");  // who connected and did not ask in time, or had to make room

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

Status failed(Code code, std::string why, int error = 0) {
  return Status(code, Scope::kOperation, kOrigin, std::move(why), error);
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path))
    return failed(Code::kInvalidArgument, "the broker's path must have 1 to 107 bytes");
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Descriptor unix_socket() { return Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

void limit_waits(int fd, time_t seconds) {
  timeval limit{seconds, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

// Anybody can make a socket at a path of his own and have others pointed to it: what he lends would
// see what he likes.
Status trusted(int broker, const std::string& path) {
  ucred owner{};
  socklen_t length = sizeof(owner);
  if (::getsockopt(broker, SOL_SOCKET, SO_PEERCRED, &owner, &length) != 0)
    return failed(Code::kUnreachable, "no broker answers at " + path, errno);
  // In a user namespace many users look like this one.
  constexpr uid_t kOverflow = 65534;
  const uid_t own = ::geteuid();
  if (owner.uid == 0 || (owner.uid == own && own != kOverflow)) return Status();
  return failed(Code::kAccessDenied, "what listens at " + path + " belongs to user " +
                                         std::to_string(owner.uid) +
                                         ", not to root; see who has set SLUICE_L2_BROKER");
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
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int fds[kDescriptors] = {-1, -1};
    std::memcpy(fds, CMSG_DATA(header), std::min(sizeof(fds), header->cmsg_len - CMSG_LEN(0)));
    socket.fd = Descriptor(fds[0]);
    socket.claim = Descriptor(fds[1]);
  }
  return socket;
}

}  // namespace

std::string broker_path(const std::string& interface) {
  return setting_text("SLUICE_L2_BROKER").value_or("/run/sluice-l2-" + interface);
}

bool broker_is_there(const std::string& interface) {
  struct stat found;
  return ::stat(broker_path(interface).c_str(), &found) == 0 && S_ISSOCK(found.st_mode);
}

Result<PacketSocket> borrow_packet_socket(const std::string& interface, uint16_t port) {
  std::string path = broker_path(interface);
  SLUICE_TRY(sockaddr_un address, address_of(path));
  Request request{.magic = kMagic, .version = kVersion, .port = port, .interface = {}};
  if (interface.size() >= sizeof(request.interface))
    return failed(Code::kInvalidArgument, "there is no interface '" + interface + "'");
  std::memcpy(request.interface, interface.data(), interface.size());
  Descriptor fd = unix_socket();
  if (fd.value() < 0) return no_descriptor(errno);
  limit_waits(fd.value(), kBrokerSeconds);
  if (::connect(fd.value(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return failed(Code::kUnreachable, "no broker answers at " + path, errno);
  }
  SLUICE_RETURN_IF_ERROR(trusted(fd.value(), path));
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
  if (bytes != sizeof(answer) || answer.magic != kMagic || answer.version != kVersion ||
      answer.code >= kCodeCount) {
    return failed(Code::kUnreachable, "no broker answers at " + path, bytes < 0 ? errno : 0);
  }
  answer.detail[sizeof(answer.detail) - 1] = '\0';
  if (answer.code != 0)
    return failed(static_cast<Code>(answer.code), "the broker at " + path + ": " + answer.detail);
  if (socket.fd.value() < 0 || socket.claim.value() < 0)
    return failed(Code::kUnreachable,
                  "the broker at " + path + " passed no sockets; raise ulimit -n");
  socket.port = answer.port;
  return socket;
}

Result<Broker> Broker::open(const BrokerOptions& options) {
  SLUICE_RETURN_IF_ERROR(
      open_packet_socket(options.interface, 0, true).status());  // what cannot work is told at once
  SLUICE_TRY(sockaddr_un address, address_of(options.path));
  Descriptor fd = unix_socket();
  if (fd.value() < 0) return no_descriptor(errno);
  ::fcntl(fd.value(), F_SETFL, O_NONBLOCK);
  struct stat found;
  if (::lstat(options.path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode))
    ::unlink(options.path.c_str());
  bool listens = ::bind(fd.value(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                 ::chmod(options.path.c_str(), kMode) == 0 && ::listen(fd.value(), kBacklog) == 0;
  if (!listens)
    return failed(Code::kInvalidArgument, "the broker cannot listen at " + options.path, errno);
  return Broker(options, std::move(fd));
}

Broker::~Broker() {
  if (listener_.value() >= 0) ::unlink(options_.path.c_str());
}

bool Broker::listed(uid_t user) const {
  return user == 0 ||
         std::find(options_.users.begin(), options_.users.end(), user) != options_.users.end();
}

Result<PacketSocket> Broker::lend(const Asker& asker) {
  Request request{};
  ssize_t bytes = ::recv(asker.fd.value(), &request, sizeof(request), MSG_TRUNC | MSG_DONTWAIT);
  if (bytes != sizeof(request) || request.magic != kMagic || request.version != kVersion)
    return failed(Code::kCorrupt, "no request that it understands");
  if (::strnlen(request.interface, sizeof(request.interface)) == sizeof(request.interface) ||
      options_.interface != request.interface) {
    return failed(Code::kInvalidArgument, "it lends sockets at " + options_.interface + " only");
  }
  SLUICE_RETURN_IF_ERROR(lent_.may_lend(asker.user, request.port));
  Result<PacketSocket> socket = open_packet_socket(options_.interface, request.port, true);
  for (int tries = 0;
       socket.ok() && lent_.of_another(asker.user, socket->port) && tries < kTriesForPort;
       ++tries) {
    socket = open_packet_socket(options_.interface, 0, true);
  }
  if (!socket.ok()) return socket;
  if (lent_.of_another(asker.user, socket->port)) return failed(Code::kTryAgain, "no port is free");
  lent_.add(asker.user, socket->port, socket->fd.value());
  return socket;
}

Status Broker::answer(const Asker& asker, Result<PacketSocket> socket) {
  (socket.ok() ? lent : refused).add();
  Answer answer{.magic = kMagic,
                .version = kVersion,
                .port = socket.ok() ? socket->port : uint16_t{0},
                .code = static_cast<uint32_t>(socket.code()),
                .detail = {}};
  std::string_view detail = socket.status().detail();
  std::memcpy(answer.detail, detail.data(), std::min(detail.size(), sizeof(answer.detail) - 1));
  (void)send_answer(asker.fd.value(), answer, socket.ok() ? &*socket : nullptr);
  if (socket.ok() || told_.size() >= kMostTold || !told_.insert({asker.user, socket.code()}).second)
    return Status();
  return socket.status();
}

// Ends the oldest client of the user who has most.
void Broker::make_room() {
  std::map<uid_t, size_t> of_user;
  for (const Asker& asker : askers_) ++of_user[asker.user];
  auto greedy = std::max_element(of_user.begin(), of_user.end(),
                                 [](const auto& a, const auto& b) { return a.second < b.second; });
  askers_.erase(std::find_if(askers_.begin(), askers_.end(),
                             [&](const Asker& asker) { return asker.user == greedy->first; }));
  silent.add();
}

Status Broker::let_in() {
  Descriptor peer(::accept4(listener_.value(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (peer.value() < 0) {
    // No descriptor is left: those that wait give theirs, or somebody else does.
    if ((errno == EMFILE || errno == ENFILE) && !askers_.empty())
      make_room();
    else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
      ::poll(nullptr, 0, kOutOfDescriptorsMs);
    return Status();
  }
  ucred user{};
  socklen_t length = sizeof(user);
  bool known = ::getsockopt(peer.value(), SOL_SOCKET, SO_PEERCRED, &user, &length) == 0;
  Asker asker{.fd = std::move(peer),
              .user = known ? user.uid : static_cast<uid_t>(-1),
              .expires = after(now(), kAskerLimit)};
  // Before a word of his is read.
  if (!known || !listed(user.uid))
    return answer(
        asker, failed(Code::kAccessDenied, "it lends to root and to those named by --uid, not to " +
                                               std::to_string(user.uid)));
  rlimit limit{};
  const bool scarce =
      ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && askers_.size() + kOwnDescriptors >= limit.rlim_cur;
  if (askers_.size() >= kMostAskers || (scarce && !askers_.empty())) make_room();
  askers_.push_back(std::move(asker));
  return Status();
}

Status Broker::serve_one() {
  std::vector<pollfd> ready;
  for (const Asker& asker : askers_) ready.push_back({asker.fd.value(), POLLIN, 0});
  ready.push_back({listener_.value(), POLLIN, 0});
  // A late client is sent away within a second of its limit.
  if (::poll(ready.data(), ready.size(), askers_.empty() ? -1 : kLookMs) < 0) return Status();
  Status first;
  auto keep = [&](Status status) {
    if (first.ok()) first = std::move(status);
  };
  const Instant t = now();
  for (size_t i = ready.size() - 1; i-- > 0;) {
    if (ready[i].revents != 0) {
      Result<PacketSocket> socket = lend(askers_[i]);
      keep(answer(askers_[i], std::move(socket)));
    } else if (askers_[i].expires > t) {
      continue;
    } else {
      silent.add();
    }
    askers_.erase(askers_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (ready.back().revents != 0) keep(let_in());
  return first;
}

}  // namespace sluice::l2
