#include "tools/demo_job/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace sluice::tools::demo {
namespace {

constexpr const char* kOrigin = "demo/wire";
constexpr const char* kOwnNetwork = "/proc/thread-self/ns/net";
constexpr size_t kMostWords = 300;  // of what a command complains

Status failed(Code code, std::string why, int error = 0) {
  return Status(code, Scope::kContext, kOrigin, std::move(why), error);
}

// Everything that comes through `fd`; closes it.
std::string read_all(int fd) {
  std::string text;
  char part[256];
  for (ssize_t n; (n = ::read(fd, part, sizeof part)) > 0 || (n < 0 && errno == EINTR);) {
    if (n > 0 && text.size() < kMostWords) text.append(part, static_cast<size_t>(n));
  }
  ::close(fd);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// Runs `ip` with these arguments in a namespace.
Status run_ip(int network, std::vector<std::string> arguments) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0)
    return failed(Code::kNoMemory, "no pipe; see ulimit -n", errno);
  std::vector<char*> argv;
  arguments.insert(arguments.begin(), "ip");
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(pipe[1], STDERR_FILENO);
    ::dup2(pipe[1], STDOUT_FILENO);
    if (!enter_network(network)) ::_exit(126);
    ::execvp("ip", argv.data());
    ::execv("/sbin/ip", argv.data());  // a user's PATH may not have it
    ::_exit(127);
  }
  ::close(pipe[1]);
  const std::string said = read_all(pipe[0]);
  if (pid < 0) return failed(Code::kNoMemory, "fork() failed; see ulimit -u", errno);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return Status();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
    return failed(Code::kUnsupported,
                  "there is no `ip` command to lay a cable with; install iproute2");
  std::string line;
  for (const std::string& argument : arguments) line += argument + " ";
  return failed(Code::kUnsupported, "`" + line.substr(0, line.size() - 1) +
                                        "` failed: " + (said.empty() ? "without a word" : said));
}

// A new one; this process stays where it is.
Result<int> new_network() {
  const int own = ::open(kOwnNetwork, O_RDONLY | O_CLOEXEC);
  if (own < 0)
    return failed(Code::kUnsupported, "this kernel has no network namespaces (/proc/self/ns/net)",
                  errno);
  if (::unshare(CLONE_NEWNET) != 0) {
    const int error = errno;
    ::close(own);
    if (error == EPERM) {
      return failed(Code::kAccessDenied,
                    "network namespaces of its own need root (CAP_SYS_ADMIN); run it as root, or "
                    "name an interface, e.g. --l2 lo",
                    error);
    }
    return failed(Code::kUnsupported, "no network namespace", error);
  }
  const int made = ::open(kOwnNetwork, O_RDONLY | O_CLOEXEC);
  const int error = errno;
  if (!enter_network(own)) std::abort();  // in the wrong network nothing that follows would be true
  ::close(own);
  if (made < 0) return failed(Code::kNoMemory, "no descriptor; see ulimit -n", error);
  return made;
}

}  // namespace

bool enter_network(int network) { return ::setns(network, CLONE_NEWNET) == 0; }

Wire::Wire(Wire&& other) noexcept {
  for (int i = 0; i < 2; ++i) networks_[i] = std::exchange(other.networks_[i], -1);
}

Wire::~Wire() {
  for (int network : networks_) {
    if (network >= 0) ::close(network);
  }
}

Result<Wire> Wire::make() {
  Wire wire;
  for (int& network : wire.networks_) {
    SLUICE_TRY(network, new_network());
  }
  const std::string there =
      "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(wire.worker_network());
  SLUICE_RETURN_IF_ERROR(
      run_ip(wire.server_network(), {"link", "add", kServerInterface, "type", "veth", "peer",
                                     "name", kWorkerInterface, "netns", there}));
  const char* const ends[2][2] = {{kServerInterface, kServerHost}, {kWorkerInterface, "192.0.2.2"}};
  for (int i = 0; i < 2; ++i) {
    SLUICE_RETURN_IF_ERROR(run_ip(
        wire.networks_[i], {"address", "add", std::string(ends[i][1]) + "/24", "dev", ends[i][0]}));
    SLUICE_RETURN_IF_ERROR(run_ip(wire.networks_[i], {"link", "set", ends[i][0], "up"}));
  }
  return wire;
}

}  // namespace sluice::tools::demo
