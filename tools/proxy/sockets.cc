#include "tools/proxy/sockets.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include <sluice/base/socket_address.h>

namespace sluice::tools::proxy {
namespace {

constexpr const char* kOrigin = "tools/proxy";
constexpr int kBacklog = 512;
constexpr mode_t kRights = 0600;  // of the file of a Unix socket
constexpr const char* kRaiseLimit = "raise the limit of open files (ulimit -n)";

Status failed(Code code, const std::string& what, int error, const char* remedy) {
  return Status(code, Scope::kOperation, kOrigin,
                fmt::format("{}: {}; {}", what, std::strerror(error), remedy), error);
}

// Why nothing can listen there, and what to do.
Status cannot_listen(const SocketAddress& address, int error) {
  const char* remedy = "choose another place";
  if (error == EADDRINUSE)
    remedy = "another program listens there: end it, or choose another place";
  if (error == EADDRNOTAVAIL) remedy = "no interface of this machine has that address: choose one";
  if (error == ENOENT) remedy = "make the folder first";
  if (error == EACCES && address.is_unix()) remedy = "choose a folder that you may write to";
  if (error == EACCES && !address.is_unix())
    remedy = "ports below 1024 need CAP_NET_BIND_SERVICE: choose one above";
  return failed(error == EACCES ? Code::kAccessDenied : Code::kWrongState,
                "cannot listen at " + address.text(), error, remedy);
}

Status wrong(std::string_view text, const char* why) {
  return Status(
      Code::kInvalidArgument, Scope::kOperation, kOrigin,
      fmt::format("'{}' {}; example: 127.0.0.1:50051 or unix:/run/user/1000/app.sock", text, why));
}

Result<SocketAddress> unix_address(std::string_view path) {
  sockaddr_un at{};
  if (path.empty() || path.size() >= sizeof(at.sun_path))
    return wrong(path, "is no path for a Unix socket: it has 1 to 107 bytes");
  at.sun_family = AF_UNIX;
  std::memcpy(at.sun_path, path.data(), path.size());
  const bool abstract = path[0] == '@';
  if (abstract) at.sun_path[0] = '\0';
  SocketAddress address;
  std::memcpy(&address.storage, &at, sizeof(at));
  address.length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + (abstract ? 0 : 1));
  return address;
}

// A small write is not held back for an answer to the one before it.
void send_at_once(int fd, const SocketAddress& address) {
  const int on = 1;
  if (!address.is_unix()) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// Returns 0 or an errno.
int bind_to(int fd, const SocketAddress& address, UnixSocketFile& file) {
  if (address.has_file())
    return file.bind(fd, reinterpret_cast<const sockaddr_un&>(address.storage), kRights);
  const int outcome =
      ::bind(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.length);
  return outcome == 0 ? 0 : errno;
}

}  // namespace

std::string SocketAddress::path() const {
  const auto& at = reinterpret_cast<const sockaddr_un&>(storage);
  const size_t size = length - offsetof(sockaddr_un, sun_path);
  if (at.sun_path[0] == '\0') return "@" + std::string(at.sun_path + 1, size - 1);
  return at.sun_path;
}

std::string SocketAddress::text() const {
  if (is_unix()) return "unix:" + path();
  char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&storage), length, host, sizeof(host), port,
                sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
  return storage.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host, port)
                                       : fmt::format("{}:{}", host, port);
}

Result<std::vector<SocketAddress>> find_addresses(std::string_view text) {
  std::vector<SocketAddress> found;
  if (text.starts_with("unix:")) {
    SLUICE_TRY(SocketAddress address, unix_address(text.substr(5)));
    found.push_back(address);
    return found;
  }
  const size_t colon = text.rfind(':');
  std::string host(colon == std::string_view::npos ? "127.0.0.1" : text.substr(0, colon));
  const std::string port(colon == std::string_view::npos ? text : text.substr(colon + 1));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  if (host.empty() || port.empty() || port.size() > 5 ||
      port.find_first_not_of("0123456789") != std::string::npos || std::stoul(port) > 65535)
    return wrong(text, "is neither HOST:PORT, PORT (at most 65535) nor unix:PATH");
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int outcome = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  if (outcome != 0)
    return Status(Code::kUnreachable, Scope::kOperation, kOrigin,
                  fmt::format("the host '{}' is not found: {}; check its spelling, or give its "
                              "IP address",
                              host, ::gai_strerror(outcome)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(list, &::freeaddrinfo);
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.length = each->ai_addrlen;
    found.push_back(address);
  }
  return found;
}

Result<ListeningSocket> ListeningSocket::open(const SocketAddress& address) {
  const int on = 1;
  ListeningSocket made;
  made.fd_ = Descriptor(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.fd_) return failed(Code::kNoMemory, "no socket", errno, kRaiseLimit);
  if (!address.is_unix()) ::setsockopt(made.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (int error = bind_to(made.fd(), address, made.file_); error != 0)
    return cannot_listen(address, error);
  if (::listen(made.fd(), kBacklog) != 0) return cannot_listen(address, errno);
  return made;
}

ListeningSocket& ListeningSocket::operator=(ListeningSocket&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(file_, other.file_);
  return *this;
}

std::string ListeningSocket::text() const {
  SocketAddress address;
  address.length = sizeof(address.storage);
  ::getsockname(fd(), reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return address.text();
}

Descriptor ListeningSocket::accept() const {
  SocketAddress from;
  from.length = sizeof(from.storage);
  Descriptor socket(::accept4(fd(), reinterpret_cast<sockaddr*>(&from.storage), &from.length,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket) send_at_once(socket.value(), from);
  return socket;
}

namespace {

Status connect_failed(const SocketAddress& address, int error) {
  if (error == EAGAIN && address.is_unix())
    return failed(Code::kTryAgain, "too many wait to be accepted at " + address.text(), error,
                  "see why the service accepts none");
  return failed(
      Code::kUnreachable, "nobody answers at " + address.text(), error,
      error == EACCES ? "let this user connect to its socket" : "start the service there");
}

}  // namespace

Status connect_outcome(int fd, const SocketAddress& address) {
  int error = 0;
  socklen_t length = sizeof(error);
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0 && is_its_own_peer(fd)) error = ECONNREFUSED;
  return error == 0 ? Status() : connect_failed(address, error);
}

Result<Descriptor> begin_connect(const SocketAddress& address) {
  Descriptor socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return failed(Code::kNoMemory, "no socket", errno, kRaiseLimit);
  send_at_once(socket.value(), address);
  if (::connect(socket.value(), reinterpret_cast<const sockaddr*>(&address.storage),
                address.length) != 0 &&
      errno != EINPROGRESS)
    return connect_failed(address, errno);
  return socket;
}

void close_hard(Descriptor& socket) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  if (socket) ::setsockopt(socket.value(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  socket.reset();
}

}  // namespace sluice::tools::proxy
