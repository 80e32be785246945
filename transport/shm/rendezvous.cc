#include <sluice/shm/rendezvous.h>

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/base/log.h>

#include "transport/shm/packet.h"

namespace sluice::shm {
namespace {

constexpr const char* kOrigin = "shm/rendezvous";
constexpr size_t kMostHalfOpen = 64;
constexpr Duration kHalfOpenLimit = std::chrono::seconds(5);

Counter refused("shm.meetings_refused");

Status failure(Code code, const std::string& why, int error = 0) { return Status(code, Scope::kEndpoint, kOrigin, why, error); }

sockaddr_un abstract_address(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  size_t n = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), n);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  return address;
}

struct Fd {
  explicit Fd(int value) : fd(value) {}
  ~Fd() {
    if (fd >= 0) ::close(fd);
  }
  int release() { return std::exchange(fd, -1); }
  int fd;
};

// The same user only: an extent is disclosed whole to whoever maps it.
Status check_peer(int fd) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return failure(Code::kAccessDenied, "the peer's user is not known", errno);
  }
  if (peer.uid != ::geteuid()) {
    return failure(Code::kAccessDenied, "the peer runs as user " + std::to_string(peer.uid) + ", we as " +
                                            std::to_string(::geteuid()) + "; shared memory is for one user, use tcp://");
  }
  return Status();
}

Status send_hello(int fd, const wire::Hello& hello, int region_fd) {
  std::byte bytes[wire::kMaxHeaderBytes];
  size_t length = wire::encode(hello, bytes);
  return send_packet(fd, std::span<const std::byte>(bytes, length), region_fd);
}

// The refusal itself is best effort: the peer sees the connection end in any case.
void send_bye(int fd, Code code) {
  std::byte bytes[wire::kMaxHeaderBytes];
  size_t length = wire::encode(wire::Bye{.code = code}, bytes);
  (void)send_packet(fd, std::span<const std::byte>(bytes, length), -1);
}

struct Greeting {
  wire::Hello hello;
  std::unique_ptr<PeerRegion> region;
};

// kTryAgain: nothing has come yet.
Result<Greeting> receive_hello(int fd, const wire::Hello& ours) {
  std::array<std::byte, wire::kMaxHeaderBytes> room;
  SLUICE_TRY(Packet packet, receive_packet(fd, room));
  Fd region(packet.fd);
  if (packet.length == 0) return failure(Code::kUnreachable, "the peer ended the connection during the handshake");
  std::span<const std::byte> bytes(room.data(), packet.length);
  SLUICE_TRY(wire::Header header, wire::decode_header(bytes));
  if (header.header_bytes != packet.length) return failure(Code::kCorrupt, "a handshake packet of the wrong length");
  if (header.type == wire::MessageType::kBye) {
    wire::Bye bye;
    SLUICE_RETURN_IF_ERROR(wire::decode(bytes, bye));
    return failure(bye.code == Code::kOk ? Code::kUnreachable : bye.code, "the peer refused the connection");
  }
  if (header.type != wire::MessageType::kHello) return failure(Code::kCorrupt, "the peer did not begin with HELLO");
  Greeting greeting;
  SLUICE_RETURN_IF_ERROR(wire::decode(bytes, greeting.hello));
  SLUICE_RETURN_IF_ERROR(wire::negotiate(ours, greeting.hello));
  if (greeting.hello.host != ours.host) return failure(Code::kCorrupt, "a peer on this socket claims another host");
  if (region.fd < 0) return failure(Code::kCorrupt, "HELLO without a control region");
  SLUICE_TRY(greeting.region, PeerRegion::map(region.release(), greeting.hello.incarnation));
  return greeting;
}

}  // namespace

std::string socket_name(const wire::Uuid& rendezvous) {
  std::string name = "sluice/";
  char hex[3];
  for (std::byte b : rendezvous.bytes) {
    std::snprintf(hex, sizeof(hex), "%02x", static_cast<unsigned>(b));
    name += hex;
  }
  return name;
}

namespace {
constexpr std::string_view kNamed = "sluice/name/";

// As a program wrote it.
std::string shown(const std::string& socket) {
  return socket.starts_with(kNamed) ? "shm:" + socket.substr(kNamed.size()) : "the socket '" + socket + "'";
}
}  // namespace

std::string socket_name(std::string_view name) { return std::string(kNamed) + std::string(name); }

Result<Meeting> meet(Context& context, const std::string& name, const wire::Hello& ours, Instant deadline) {
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.fd < 0) return failure(Code::kNoMemory, "no descriptor for a socket; raise ulimit -n", errno);
  socklen_t length;
  sockaddr_un address = abstract_address(name, length);
  // A full backlog answers EAGAIN: the listener is behind, not gone.
  while (::connect(fd.fd, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      return failure(Code::kUnreachable, "nobody listens at " + shown(name) + " in this network namespace; start the listener first", errno);
    }
    if (context.refresh_now() >= deadline) return failure(Code::kTimedOut, "the listener at " + shown(name) + " accepts nobody");
    context.progress();
  }
  SLUICE_RETURN_IF_ERROR(check_peer(fd.fd));
  Meeting meeting;
  meeting.ours = ours;
  SLUICE_TRY(meeting.parts.own, OwnRegion::create(ours.incarnation));
  fault_point("shm.connected");
  SLUICE_RETURN_IF_ERROR(send_hello(fd.fd, ours, meeting.parts.own->fd()));
  fault_point("shm.hello_sent");
  while (true) {
    Result<Greeting> greeting = receive_hello(fd.fd, ours);
    if (greeting.ok()) {
      meeting.peer = greeting->hello;
      meeting.parts.peer = std::move(greeting->region);
      break;
    }
    if (greeting.code() != Code::kTryAgain) return greeting.status();
    if (context.refresh_now() >= deadline) return failure(Code::kTimedOut, "the listener at " + shown(name) + " does not answer");
    // A peer in our own context answers from this very progress().
    context.progress();
  }
  if (meeting.peer.token != ours.token) return failure(Code::kCorrupt, "the peer did not echo the token");
  fault_point("shm.hello_received");
  meeting.parts.peer_arena_bytes = meeting.peer.arena_bytes;
  meeting.parts.local_name = "pid " + std::to_string(::getpid());
  meeting.parts.peer_name = "pid " + std::to_string(meeting.peer.pid);
  meeting.parts.fd = fd.release();
  return meeting;
}

struct RendezvousListener::HalfOpen final : EventHandler {
  HalfOpen(RendezvousListener& owner, int socket, Instant limit) : listener(owner), fd(socket), deadline(limit) {}
  void on_event(uint32_t) noexcept override { listener.finish(*this); }
  RendezvousListener& listener;
  int fd;
  Instant deadline;
};

RendezvousListener::RendezvousListener(Context& context, const wire::Hello& ours) : context_(context), ours_(ours) {}

Result<std::unique_ptr<RendezvousListener>> RendezvousListener::open(Context& context, const std::string& name,
                                                                     const wire::Hello& ours) {
  std::unique_ptr<RendezvousListener> listener(new RendezvousListener(context, ours));
  listener->fd_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener->fd_ < 0) return failure(Code::kNoMemory, "no descriptor for a socket; raise ulimit -n", errno);
  socklen_t length;
  sockaddr_un address = abstract_address(name, length);
  if (::bind(listener->fd_, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    bool taken = errno == EADDRINUSE;
    return failure(taken ? Code::kInvalidArgument : Code::kInternal,
                   taken ? shown(name) + " is taken by another listener; choose another name" : "bind to " + shown(name) + " failed", errno);
  }
  if (::listen(listener->fd_, 128) != 0) return failure(Code::kInternal, "listen at " + shown(name) + " failed", errno);
  SLUICE_RETURN_IF_ERROR(context.watch(listener->fd_, EPOLLIN, listener.get()));
  return listener;
}

RendezvousListener::~RendezvousListener() {
  for (auto& half : half_open_) {
    context_.unwatch(half->fd, half.get());
    ::close(half->fd);
  }
  if (fd_ >= 0) {
    context_.unwatch(fd_, this);
    ::close(fd_);
  }
}

bool RendezvousListener::take(Meeting& out) {
  forgotten_.clear();
  if (met_.empty()) return false;
  out = std::move(met_.front());
  met_.pop_front();
  return true;
}

void RendezvousListener::on_event(uint32_t) noexcept {
  expire(context_.now());
  accept_some();
}

void RendezvousListener::accept_some() {
  // Bounded: a flood of connections must not keep other events waiting.
  for (int i = 0; i < 16; ++i) {
    int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    Status peer = check_peer(fd);
    if (!peer.ok() || half_open_.size() >= kMostHalfOpen) {
      refused.add();
      send_bye(fd, peer.ok() ? Code::kTryAgain : Code::kAccessDenied);
      ::close(fd);
      if (!peer.ok()) log(LogLevel::kWarning, peer.to_string());
      continue;
    }
    auto half = std::make_unique<HalfOpen>(*this, fd, after(context_.now(), kHalfOpenLimit));
    if (!context_.watch(fd, EPOLLIN | EPOLLRDHUP, half.get()).ok()) {
      ::close(fd);
      continue;
    }
    half_open_.push_back(std::move(half));
  }
}

void RendezvousListener::expire(Instant now) {
  for (size_t i = 0; i < half_open_.size();) {
    if (half_open_[i]->deadline <= now) {
      refused.add();
      forget(*half_open_[i]);
    } else {
      ++i;
    }
  }
}

void RendezvousListener::forget(HalfOpen& half) {
  context_.unwatch(half.fd, &half);
  if (half.fd >= 0) ::close(std::exchange(half.fd, -1));
  for (size_t i = 0; i < half_open_.size(); ++i) {
    if (half_open_[i].get() != &half) continue;
    forgotten_.push_back(std::move(half_open_[i]));
    half_open_.erase(half_open_.begin() + static_cast<long>(i));
    return;
  }
}

void RendezvousListener::finish(HalfOpen& half) {
  Result<Greeting> greeting = receive_hello(half.fd, ours_);
  if (!greeting.ok()) {
    if (greeting.code() == Code::kTryAgain) return;
    refused.add();
    log(LogLevel::kWarning, "refused a shared-memory peer: " + greeting.status().to_string());
    send_bye(half.fd, greeting.code());
    forget(half);
    return;
  }
  fault_point("shm.accepted");
  Meeting meeting;
  meeting.ours = ours_;
  meeting.ours.token = greeting->hello.token;
  meeting.ours.has_rendezvous = greeting->hello.has_rendezvous;
  meeting.peer = greeting->hello;
  meeting.parts.peer = std::move(greeting->region);
  Result<std::unique_ptr<OwnRegion>> own = OwnRegion::create(meeting.ours.incarnation);
  Status sent = own.ok() ? send_hello(half.fd, meeting.ours, (*own)->fd()) : own.status();
  if (!sent.ok()) {
    refused.add();
    log(LogLevel::kWarning, "refused a shared-memory peer: " + sent.to_string());
    send_bye(half.fd, sent.code());
    forget(half);
    return;
  }
  meeting.parts.own = std::move(own).value();
  meeting.parts.peer_arena_bytes = meeting.peer.arena_bytes;
  meeting.parts.local_name = "pid " + std::to_string(::getpid());
  meeting.parts.peer_name = "pid " + std::to_string(meeting.peer.pid);
  context_.unwatch(half.fd, &half);
  meeting.parts.fd = std::exchange(half.fd, -1);
  met_.push_back(std::move(meeting));
  forget(half);
}

}  // namespace sluice::shm
