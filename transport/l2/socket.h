// What both carriers need of a socket: a descriptor that closes itself, and room in the
// kernel. Knows no frames.
#ifndef SLUICE_L2_SOCKET_H_
#define SLUICE_L2_SOCKET_H_

#include <unistd.h>

#include <cstddef>
#include <string>
#include <utility>

#include <sluice/base/status.h>

namespace sluice::l2 {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  int value() const { return fd_; }

 private:
  int fd_ = -1;
};

// kNoMemory: no descriptor is left.
Status no_descriptor(int error);

// Bytes that the kernel keeps for a socket, as it counts them: with what surrounds each frame.
struct SocketRoom {
  size_t receive = 0, send = 0;
  bool limited = false;  // less than was asked for
  std::string text() const;
};
// Makes both as large as this process may, and reads back what they are.
SocketRoom enlarge(int fd);

}  // namespace sluice::l2

#endif  // SLUICE_L2_SOCKET_H_
