#include "tools/perf/run/processes.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include <sluice/base/settings.h>

namespace sluice::tools {
namespace {

constexpr const char* kOrigin = "perf/processes";

int milliseconds_until(Instant end) {
  auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - sluice::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left + 1, 0, 1'000'000));
}

// Until the descriptor is readable. False: `end` passed.
bool wait_readable(int fd, Instant end) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  while (true) {
    int ready = ::poll(&entry, 1, milliseconds_until(end));
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) return false;
  }
}

}  // namespace

Result<Child> Child::start(const std::function<int(int)>& body) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return Status(Code::kNoMemory, Scope::kOperation, kOrigin,
                  "no descriptors for a pipe; raise ulimit -n", errno);
  }
  warn_of_unknown_settings();  // here, so that the second process does not repeat it
  std::fflush(stdout);
  std::fflush(stderr);
  pid_t parent = ::getpid();
  pid_t pid = ::fork();
  if (pid < 0) {
    int error = errno;
    ::close(ends[0]);
    ::close(ends[1]);
    return Status(Code::kNoMemory, Scope::kOperation, kOrigin, "no second process; see ulimit -u",
                  error);
  }
  if (pid == 0) {
    ::close(ends[0]);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // it died before we asked
    int code = body(ends[1]);
    std::fflush(stdout);
    std::fflush(stderr);
    ::_exit(code);
  }
  ::close(ends[1]);
  return Child(pid, ends[0]);
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), pipe_(std::exchange(other.pipe_, -1)) {}

Child::~Child() {
  if (pid_ > 0) (void)reap(Duration(0));
  if (pipe_ >= 0) ::close(pipe_);
}

Result<std::string> Child::read_line(Duration limit) {
  Instant end = after(sluice::now(), limit);
  std::string line;
  while (true) {
    if (!wait_readable(pipe_, end))
      return Status(Code::kTimedOut, Scope::kOperation, kOrigin, "the second process says nothing");
    char c;
    ssize_t n = ::read(pipe_, &c, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return Status(Code::kUnreachable, Scope::kOperation, kOrigin,
                    "the second process ended before it was ready; it has said why");
    if (c == '\n') return line;
    line += c;
  }
}

int Child::reap(Duration limit) {
  // The pidfd is readable once the process has ended.
  int fd = limit > Duration(0) ? static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)) : -1;
  bool ended = fd >= 0 && wait_readable(fd, after(sluice::now(), limit));
  if (fd >= 0) ::close(fd);
  if (!ended) ::kill(pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {}
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int usable_cpus() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

bool stay_on_cpu(int index) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return false;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || index-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return ::sched_setaffinity(0, sizeof(one), &one) == 0;
  }
  return false;
}

}  // namespace sluice::tools
