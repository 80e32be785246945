// The sockets of programs: where they are, listening and connecting. Knows nothing of sluice's
// connections.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sluice/base/descriptor.h>
#include <sluice/base/result.h>
#include <sluice/base/unix_socket_file.h>

namespace sluice::tools::proxy {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  bool is_unix() const { return storage.ss_family == AF_UNIX; }
  std::string path() const;  // of a Unix socket
  bool has_file() const { return is_unix() && path()[0] != '@'; }
  std::string text() const;
};

// "HOST:PORT", "[::1]:PORT", "PORT" (this machine alone), "unix:PATH", "unix:@NAME" (abstract).
// All addresses of the host. Blocks: to look up the name. Errors: kInvalidArgument, kUnreachable.
Result<std::vector<SocketAddress>> find_addresses(std::string_view text);

// A listening socket; the file of a Unix socket goes with it.
class ListeningSocket {
 public:
  // A file that is a socket nobody listens at is replaced; the new one is for this user alone.
  // Errors: kAccessDenied, kWrongState (in use).
  static Result<ListeningSocket> open(const SocketAddress& address);
  ListeningSocket() = default;
  ListeningSocket(ListeningSocket&& other) noexcept = default;
  ListeningSocket& operator=(ListeningSocket&& other) noexcept;
  int fd() const { return fd_.value(); }
  std::string text() const;  // with the port that was chosen

  // The next connection, without blocking; or none.
  Descriptor accept() const;

 private:
  Descriptor fd_;
  UnixSocketFile file_;  // of a Unix socket: goes before it is closed
};

// A connection under way; the socket is writable when its outcome is known. Errors: kUnreachable,
// kTryAgain (a Unix socket's queue of connections is full), kNoMemory (no descriptor).
Result<Descriptor> begin_connect(const SocketAddress& address);
// How it ended; one that has reached itself has reached nobody. Errors: as above.
Status connect_outcome(int fd, const SocketAddress& address);
// The peer sees a reset, where its kind of socket has one.
void close_hard(Descriptor& socket);

}  // namespace sluice::tools::proxy
