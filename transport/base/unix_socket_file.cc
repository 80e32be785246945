#include <sluice/base/unix_socket_file.h>

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include <sluice/base/descriptor.h>

namespace sluice {
namespace {

// The file is there with its rights at once: chmod() would follow a link that the folder's owner
// has put in its place.
int bind_to(int socket, const sockaddr_un& address, mode_t rights) {
  const mode_t before = ::umask(~rights & 0777);
  const int outcome = ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = outcome == 0 ? 0 : errno;
  ::umask(before);
  return error;
}

// Nobody listens at this socket's file any more.
bool is_stale(int socket, const sockaddr_un& address) {
  if (!UnixSocketFile::is_socket(address.sun_path)) return false;
  int type = SOCK_STREAM;
  socklen_t size = sizeof(type);
  ::getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size);
  // A listener whose queue is full is not waited for.
  Descriptor probe(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return ::connect(probe.value(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
             0 &&
         errno == ECONNREFUSED;
}

}  // namespace

UnixSocketFile::UnixSocketFile(UnixSocketFile&& other) noexcept
    : path_(std::exchange(other.path_, {})), inode_(other.inode_) {}

UnixSocketFile& UnixSocketFile::operator=(UnixSocketFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(inode_, other.inode_);
  return *this;
}

UnixSocketFile::~UnixSocketFile() {
  struct stat file {};
  if (!path_.empty() && ::lstat(path_.c_str(), &file) == 0 && file.st_ino == inode_)
    ::unlink(path_.c_str());
}

int UnixSocketFile::bind(int socket, const sockaddr_un& address, mode_t rights) {
  int error = bind_to(socket, address, rights);
  if (error == EADDRINUSE && is_stale(socket, address)) {
    ::unlink(address.sun_path);
    error = bind_to(socket, address, rights);
  }
  struct stat file {};
  if (error == 0 && ::lstat(address.sun_path, &file) == 0) {
    path_ = address.sun_path;
    inode_ = file.st_ino;
  }
  return error;
}

bool UnixSocketFile::is_socket(const std::string& path) {
  struct stat file {};
  return ::lstat(path.c_str(), &file) == 0 && S_ISSOCK(file.st_mode);
}

}  // namespace sluice
