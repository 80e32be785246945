// The file of a listening Unix socket, which goes with its owner.
#ifndef SLUICE_BASE_UNIX_SOCKET_FILE_H_
#define SLUICE_BASE_UNIX_SOCKET_FILE_H_

#include <sys/types.h>
#include <sys/un.h>

#include <string>

namespace sluice {

class UnixSocketFile {
 public:
  UnixSocketFile() = default;
  UnixSocketFile(UnixSocketFile&& other) noexcept;
  UnixSocketFile& operator=(UnixSocketFile&& other) noexcept;
  // Removes the file, unless another is at its path by now.
  ~UnixSocketFile();

  // Binds `socket` to the path in `address`, which ends with a zero byte. A file that is a socket
  // at which nobody listens is replaced. The new one never has more rights than `rights`. Sets the
  // process's umask for a moment. Requires: it is bound to nothing. Returns 0 or the errno of
  // bind(); EADDRINUSE also for a file that is no socket (is_socket()).
  int bind(int socket, const sockaddr_un& address, mode_t rights);

  static bool is_socket(const std::string& path);

 private:
  std::string path_;  // empty: none
  // Of the file at path_. No other file has this number while the socket is open.
  ino_t inode_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_BASE_UNIX_SOCKET_FILE_H_
