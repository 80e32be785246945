#include "tools/demo_job/control.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sluice::tools::demo {
namespace {

constexpr const char* kOrigin = "demo/control";

Status gone(int os_error) {
  return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                "the process at the other end is gone", os_error);
}

}  // namespace

void Message::set_text(std::string_view value) {
  const size_t length = std::min(value.size(), sizeof(text) - 1);
  std::memcpy(text, value.data(), length);
  text[length] = '\0';
}

ControlLine::~ControlLine() {
  if (fd_ >= 0) ::close(fd_);
}

Result<std::pair<ControlLine, ControlLine>> ControlLine::open_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return Status(Code::kNoMemory, Scope::kOperation, kOrigin, "socketpair() failed; see ulimit -n",
                  errno);
  }
  return std::pair(ControlLine(fds[0]), ControlLine(fds[1]));
}

Status ControlLine::send(const Message& message) {
  for (;;) {
    if (::send(fd_, &message, sizeof message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof message))
      return Status();
    if (errno != EINTR) return gone(errno);
  }
}

Result<Message> ControlLine::try_receive() {
  Message message;
  ssize_t got = ::recv(fd_, &message, sizeof message, MSG_DONTWAIT);
  // The other end closed without reading all we sent: told once, before what it sent.
  if (got < 0 && errno == ECONNRESET) got = ::recv(fd_, &message, sizeof message, MSG_DONTWAIT);
  if (got == static_cast<ssize_t>(sizeof message)) return message;
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return Status(Code::kTryAgain, Scope::kOperation, kOrigin);
  }
  return gone(got < 0 ? errno : 0);
}

Result<Message> ControlLine::receive(Instant deadline) {
  for (;;) {
    Result<Message> message = try_receive();
    if (message.code() != Code::kTryAgain) return message;
    const Duration left = deadline - now();
    if (left <= Duration(0)) {
      return Status(Code::kTimedOut, Scope::kOperation, kOrigin,
                    "no order came from the coordinator in time");
    }
    pollfd poller{fd_, POLLIN, 0};
    (void)::poll(&poller, 1,
                 static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
  }
}

}  // namespace sluice::tools::demo
