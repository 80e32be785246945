#include "tools/perf/run/system_calls.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

namespace sluice::tools {
namespace {

constexpr const char* kOrigin = "perf/system_calls";
constexpr const char* kIdFile = "events/raw_syscalls/sys_enter/id";

Status unsupported(std::string why, int error = 0) {
  return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                "system calls cannot be counted: " + std::move(why), error);
}

// Opens a file of tracefs: of the mounted one, else, if the user may, of an instance that is
// mounted nowhere and ends with its descriptor (fsmount(2)).
int open_in_tracefs(const char* name) {
  for (const char* folder : {"/sys/kernel/tracing/", "/sys/kernel/debug/tracing/"}) {
    int fd = ::open((std::string(folder) + name).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd >= 0 || errno != ENOENT) return fd;
  }
  int system = ::fsopen("tracefs", FSOPEN_CLOEXEC);
  if (system < 0) return -1;
  int mount = ::fsconfig(system, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0
                  ? ::fsmount(system, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID)
                  : -1;
  int fd = mount >= 0 ? ::openat(mount, name, O_RDONLY | O_CLOEXEC) : -1;
  int error = errno;
  if (mount >= 0) ::close(mount);
  ::close(system);
  errno = error;
  return fd;
}

Result<uint64_t> tracepoint_id() {
  int fd = open_in_tracefs(kIdFile);
  if (fd < 0) {
    int error = errno;
    if (error == EACCES || error == EPERM)
      return unsupported("tracefs may not be read; run both ends as root", error);
    return unsupported(
        "this kernel has no tracepoint raw_syscalls:sys_enter (CONFIG_FTRACE_SYSCALLS)", error);
  }
  char text[32] = {};
  ssize_t length = ::read(fd, text, sizeof(text) - 1);
  ::close(fd);
  uint64_t id = length > 0 ? std::strtoull(text, nullptr, 10) : 0;
  if (id == 0) return unsupported("the tracepoint has no number");
  return id;
}

// Those of this process now.
std::set<int> thread_ids() {
  std::set<int> ids;
  DIR* folder = ::opendir("/proc/self/task");
  if (folder == nullptr) return ids;
  while (const dirent* entry = ::readdir(folder)) {
    int id = std::atoi(entry->d_name);
    if (id > 0) ids.insert(id);
  }
  ::closedir(folder);
  return ids;
}

int open_for_thread(uint64_t tracepoint, int thread) {
  perf_event_attr attributes{};
  attributes.size = sizeof(attributes);
  attributes.type = PERF_TYPE_TRACEPOINT;
  attributes.config = tracepoint;
  attributes.inherit = 1;
  return static_cast<int>(
      ::syscall(SYS_perf_event_open, &attributes, thread, -1, -1, PERF_FLAG_FD_CLOEXEC));
}

}  // namespace

Status SystemCallCounter::open_for(uint64_t tracepoint, const std::set<int>& threads) {
  for (int thread : threads) {
    int fd = open_for_thread(tracepoint, thread);
    if (fd >= 0) {
      descriptors_.push_back(fd);
      continue;
    }
    int error = errno;
    if (error == ESRCH) continue;  // it has just ended
    if (error != EACCES && error != EPERM) return unsupported("perf_event_open(2) refuses", error);
    return unsupported(
        "the kernel counts for nobody without CAP_PERFMON (kernel.perf_event_paranoid); run both "
        "ends as root",
        error);
  }
  return Status();
}

Result<SystemCallCounter> SystemCallCounter::open() {
  constexpr int kTries = 20;
  SLUICE_TRY(uint64_t tracepoint, tracepoint_id());
  for (int i = 0; i < kTries; ++i) {
    SystemCallCounter counter;
    std::set<int> threads = thread_ids();
    SLUICE_RETURN_IF_ERROR(counter.open_for(tracepoint, threads));
    // A thread that was started meanwhile is counted twice if its starter was counted already, and
    // not at all if it was not.
    if (thread_ids() == threads && !threads.empty()) return counter;
  }
  return unsupported("threads start and end all the time");
}

SystemCallCounter::~SystemCallCounter() {
  for (int fd : descriptors_) ::close(fd);
}

uint64_t SystemCallCounter::sum() const {
  uint64_t sum = 0;
  for (int fd : descriptors_) {
    uint64_t count = 0;
    if (::read(fd, &count, sizeof(count)) == sizeof(count)) sum += count;
  }
  return sum;
}

uint64_t SystemCallCounter::stop() const {
  // Between the two readings of this thread's count lies one read(2) of each: those after it in the
  // first sum, and those up to it in the second.
  uint64_t own = descriptors_.size();
  uint64_t since = sum() - before_;
  return since > own ? since - own : 0;
}

}  // namespace sluice::tools
