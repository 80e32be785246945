// The Unix socket of a connection. Shared: the link, loans that the peer may still read and views
// of the peer's memory each need it for as long as they last.
#ifndef SLUICE_SHM_SOCKET_H_
#define SLUICE_SHM_SOCKET_H_

namespace sluice::shm {

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  // Nothing that lies in it unread stays open. Thread: any.
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace sluice::shm

#endif  // SLUICE_SHM_SOCKET_H_
