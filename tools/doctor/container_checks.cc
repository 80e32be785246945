#include "tools/doctor/container_checks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

namespace sluice::tools {
namespace {

// Of an arena's first extent, as ArenaOptions has it.
constexpr uint64_t kFirstExtentBytes = uint64_t{64} << 20;
// What docker gives to /dev/shm if nobody says otherwise is a little less than enough for one batch
// of a data loader.
constexpr uint64_t kSmallDevShm = uint64_t{64} << 20;

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The value of "Name:\tvalue" in /proc/self/status; empty: there is none.
std::string status_of(const std::filesystem::path& root, const std::string& name) {
  std::ifstream file(root / "proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name + ":")) continue;
    const size_t at = line.find_first_not_of(" \t", name.size() + 1);
    return at == std::string::npos ? "" : line.substr(at);
  }
  return "";
}

// What says that this is a container; empty: nothing does.
std::string container_mark(const std::filesystem::path& root) {
  std::error_code ignored;
  if (std::filesystem::exists(root / ".dockerenv", ignored)) return "docker (/.dockerenv)";
  if (std::filesystem::exists(root / "run/.containerenv", ignored))
    return "podman (/run/.containerenv)";
  if (std::filesystem::exists(root / "run/secrets/kubernetes.io", ignored)) return "a pod";
  const std::string kind = first_line(root / "run/systemd/container");
  return kind;
}

std::string mib(uint64_t bytes) { return fmt::format("{} MiB", bytes >> 20); }

uint64_t limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return ~uint64_t{0};
  return limit.rlim_cur == RLIM_INFINITY ? ~uint64_t{0} : limit.rlim_cur;
}

// Nothing if the call works. `error`: its errno.
Finding system_call(const char* name, int error, const char* use) {
  const std::string check = "system-calls";
  if (error == 0) return ok(check, std::string(name) + " works");
  if (error == EPERM || error == ENOSYS || error == EACCES) {
    return problem(check,
                   fmt::format("{} is forbidden here ({}): {}", name, std::strerror(error), use),
                   fmt::format("allow {} in the container's seccomp profile (docker run "
                               "--security-opt seccomp=FILE; systemd SystemCallFilter=)",
                               name));
  }
  return problem(check, fmt::format("{} fails: {}: {}", name, std::strerror(error), use),
                 "free memory and descriptors, then try again");
}

}  // namespace

Finding check_container(const std::filesystem::path& root) {
  std::vector<std::string> missing;
  if (status_of(root, "Seccomp") == "2") missing.push_back("seccomp filters system calls");
  const std::string held = status_of(root, "CapEff");
  const uint64_t rights = held.empty() ? ~uint64_t{0} : std::strtoull(held.c_str(), nullptr, 16);
  const bool raw = (rights >> CAP_NET_RAW & 1) != 0;
  const bool lock = (rights >> CAP_IPC_LOCK & 1) != 0;
  if (!raw) missing.push_back("no CAP_NET_RAW, so no l2://");
  if (!lock) missing.push_back("no CAP_IPC_LOCK, so RLIMIT_MEMLOCK counts for rdma");
  const std::string mark = container_mark(root);
  if (mark.empty()) return ok("container", "none that shows");
  const std::string where = "this is in a container: " + mark;
  if (missing.empty()) return ok("container", where + "; all that sluice needs is allowed");
  return note("container", where + fmt::format("; {}", fmt::join(missing, "; ")),
              std::string(raw ? "" : "--cap-add NET_RAW for l2://, or `sluice broker` outside; ") +
                  (lock ? "" : "--ulimit memlock=-1 for rdma; ") +
                  "nothing for paths whose trial below is ok");
}

Finding check_yama(const std::filesystem::path& root) {
  const std::string scope = first_line(root / "proc/sys/kernel/yama/ptrace_scope");
  if (scope.empty()) return ok("yama", "not in this kernel");
  return ok("yama", "ptrace_scope is " + scope +
                        ": shared memory is mapped, never read with process_vm_readv, and works "
                        "with any value");
}

Finding check_file_size(uint64_t limit, uint64_t needed) {
  if (limit >= needed)
    return ok("file-size", limit == ~uint64_t{0} ? "unlimited" : "limited to " + mib(limit));
  return problem("file-size",
                 fmt::format("files of this process may have {}, and an arena begins with a memfd "
                             "of {}: it gets none, and the kernel may end the process (SIGXFSZ)",
                             mib(limit), mib(needed)),
                 "`ulimit -f unlimited`; in services LimitFSIZE=infinity");
}

Finding check_address_space(uint64_t limit, uint64_t needed) {
  if (limit >= needed)
    return ok("address-space", limit == ~uint64_t{0} ? "unlimited" : "limited to " + mib(limit));
  return problem("address-space",
                 fmt::format("this process may use {} of addresses, and an arena reserves {}",
                             mib(limit), mib(needed)),
                 fmt::format("`ulimit -v unlimited`, or SLUICE_ARENA_LIMIT={}M",
                             std::max<uint64_t>(limit >> 22, 1)));
}

Finding check_dev_shm(uint64_t total, uint64_t available) {
  if (total == 0) return ok("dev-shm", "not mounted; sluice does not use it");
  if (available >= kSmallDevShm)
    return ok("dev-shm", fmt::format("{} free; sluice does not use it", mib(available)));
  return note(
      "dev-shm",
      fmt::format("/dev/shm has {} free of {}: sluice takes memfds and is not affected, but "
                  "frameworks beside it (data loaders, NCCL) are",
                  mib(available), mib(total)),
      "`rm` what nobody uses there; `sudo mount -o remount,size=8G /dev/shm`; in "
      "containers --shm-size=8g");
}

Findings check_system_calls() {
  // The calls themselves, not the library's: a filter knows them by number.
  const int memory = static_cast<int>(
      ::syscall(SYS_memfd_create, "sluice-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  int error = memory >= 0 ? 0 : errno;
  Findings found = {system_call("memfd_create", error, "no context can be opened")};
  if (memory >= 0) {
    error = ::fcntl(memory, F_ADD_SEALS, F_SEAL_GROW) == 0 ? 0 : errno;
    found.push_back(system_call("fcntl(F_ADD_SEALS)", error, "no memory can be shared"));
    ::close(memory);
  }
  const int process = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  found.push_back(system_call("pidfd_open", process >= 0 ? 0 : errno,
                              "shared memory cannot see that a peer's process ended"));
  if (process >= 0) ::close(process);
  return found;
}

Findings check_container_limits(uint64_t arena_bytes) {
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) != 0) shm = {};
  Findings found = {
      check_container(), check_yama(),
      check_file_size(limit_of(RLIMIT_FSIZE), std::min(arena_bytes, kFirstExtentBytes)),
      check_address_space(limit_of(RLIMIT_AS), arena_bytes),
      check_dev_shm(uint64_t{shm.f_blocks} * shm.f_frsize, uint64_t{shm.f_bavail} * shm.f_frsize)};
  Findings calls = check_system_calls();
  found.insert(found.end(), calls.begin(), calls.end());
  return found;
}

}  // namespace sluice::tools
