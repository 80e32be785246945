#include <sluice/shm/peer_user.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

#include <sluice/base/descriptor.h>

namespace sluice::shm {
namespace {

constexpr const char* kOrigin = "shm/peer_user";

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // since Linux 6.5
#endif
constexpr unsigned long kPidfdUserNamespace =
    _IO(0xFF, 9);  // PIDFD_GET_USER_NAMESPACE, since Linux 6.11
constexpr uint32_t kUsualOverflowUid = 65534;

Status denied(const std::string& why, int error = 0) {
  return Status(Code::kAccessDenied, Scope::kEndpoint, kOrigin, why, error);
}

// What is in a small file; empty if it cannot be read.
std::string text_of(const char* path) {
  Descriptor file(::open(path, O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!file) return text;
  std::array<char, 4096> room;
  for (ssize_t n; (n = ::read(file.value(), room.data(), room.size())) > 0;)
    text.append(room.data(), static_cast<size_t>(n));
  return text;
}

// A user id may stand for many.
bool may_be_many(uint32_t uid) {
  std::string text = text_of("/proc/sys/kernel/overflowuid");
  uint32_t overflow = text.empty() ? kUsualOverflowUid
                                   : static_cast<uint32_t>(std::strtoul(text.c_str(), nullptr, 10));
  return (uid == overflow || uid == kUsualOverflowUid) &&
         !maps_every_id(text_of("/proc/self/uid_map").c_str());
}

struct Namespace {
  dev_t device = 0;
  ino_t number = 0;
  bool operator==(const Namespace&) const = default;
};

// Errors: as of fstat() and stat().
Result<Namespace> namespace_of(const struct stat& info) {
  return Namespace{info.st_dev, info.st_ino};
}
Status not_told(int error) { return Status(Code::kAccessDenied, Scope::kEndpoint, kOrigin, error); }

Result<Namespace> namespace_at(const char* path) {
  struct stat info;
  if (::stat(path, &info) != 0) return not_told(errno);
  return namespace_of(info);
}

Result<Namespace> namespace_by(int process) {
  Descriptor space(::ioctl(process, kPidfdUserNamespace, 0));
  if (!space) return not_told(errno);
  struct stat info;
  if (::fstat(space.value(), &info) != 0) return not_told(errno);
  return namespace_of(info);
}

int open_process(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

Result<Namespace> own_namespace() {
  Result<Namespace> own = namespace_at("/proc/self/ns/user");
  if (own.ok()) return own;
  Descriptor self(open_process(::getpid()));
  if (!self) return own;
  return namespace_by(self.value());
}

bool has_ended(int process) {
  pollfd look{.fd = process, .events = POLLIN, .revents = 0};
  return ::poll(&look, 1, 0) != 0;
}

// Whether this thread may look into processes of other users.
bool may_trace_others() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return true;
  return (data[CAP_TO_INDEX(CAP_SYS_PTRACE)].effective & CAP_TO_MASK(CAP_SYS_PTRACE)) != 0;
}

// The process at the other end, by a handle that no later process of the same number can have.
struct Process {
  Descriptor handle;
  bool by_socket =
      false;  // the kernel said which; else we asked for the number, which may have been given anew
};

Process process_of(int socket, pid_t pid) {
  int fd = -1;
  socklen_t length = sizeof(fd);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0)
    return {Descriptor(fd), true};
  bool unknown_option = errno == ENOPROTOOPT;
  return {Descriptor(unknown_option && pid > 0 ? open_process(pid) : -1), false};
}

Status not_proven(const std::string& peer, const std::string& why, int error) {
  if (error == EMFILE || error == ENFILE) {
    return Status(Code::kNoMemory, Scope::kEndpoint, kOrigin,
                  "no descriptor to look at " + peer + " with; raise ulimit -n", error);
  }
  return denied("the kernel does not prove that " + peer + " is in our user namespace: " + why +
                    "; shared memory needs that proof, use tcp:// or sluice://",
                error);
}

}  // namespace

bool maps_every_id(const char* map) {
  // Lines of "first here, first in the parent, count"; together they are at most 2^32 - 1.
  uint64_t mapped = 0;
  for (char* end = nullptr; *map != '\0'; map = end) {
    uint64_t fields[3];
    for (uint64_t& field : fields) {
      field = std::strtoull(map, &end, 10);
      if (end == map) return mapped >= UINT32_MAX;
      map = end;
    }
    mapped += fields[2];
  }
  return mapped >= UINT32_MAX;
}

Result<PeerUser> check_peer(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    return denied("the peer's user is not known", errno);
  PeerUser peer{.uid = credentials.uid, .pid = static_cast<uint32_t>(credentials.pid)};
  if (peer.uid != ::geteuid()) {
    return denied("the peer runs as user " + std::to_string(peer.uid) + ", we as " +
                  std::to_string(::geteuid()) + "; shared memory is for one user, use tcp://");
  }
  if (credentials.pid == ::getpid()) return peer;  // ourselves
  const std::string name = "process " + std::to_string(credentials.pid);
  Result<Namespace> own = own_namespace();
  // A kernel without user namespaces has the other files of this folder.
  if (!own.ok() && own.status().os_error() == ENOENT && ::access("/proc/self/ns/mnt", F_OK) == 0)
    return peer;
  if (!own.ok())
    return not_proven(name, "our own cannot be read; is /proc mounted?", own.status().os_error());
  Process process = process_of(socket, credentials.pid);
  if (!process.handle)
    return not_proven(name, "the process has ended, or is in another pid namespace", errno);
  const std::string path = "/proc/" + std::to_string(credentials.pid) + "/ns/user";
  Result<Namespace> theirs =
      credentials.pid > 0 ? namespace_at(path.c_str()) : Result<Namespace>(not_told(ENOENT));
  const bool looked_in = theirs.ok();
  if (!theirs.ok()) theirs = namespace_by(process.handle.value());
  // Alive still: so what was read at its number was its own.
  if (has_ended(process.handle.value())) return not_proven(name, "the process has ended", 0);
  if (!theirs.ok()) {
    return not_proven(name,
                      "it may not be looked into (it is of another user or group, has capabilities "
                      "that we have not, or is not dumpable), "
                      "or is in another pid namespace",
                      theirs.status().os_error());
  }
  if (*theirs != *own)
    return denied(name + " is in another user namespace; shared memory is for one, use tcp://");
  if (!may_be_many(peer.uid)) return peer;
  // To dereference that link takes all ids of the process to be ours, or a capability (ptrace(2),
  // PTRACE_MODE_READ_FSCREDS).
  if (looked_in && process.by_socket && !may_trace_others()) return peer;
  return denied("user " + std::to_string(peer.uid) +
                " stands for every user that this user namespace has no number for, and that " +
                name +
                " is the same as we is not proven; run both as a user that the namespace maps, or "
                "use tcp://");
}

}  // namespace sluice::shm
