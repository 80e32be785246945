#include "benchmarks/bare/starts.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace bare {
namespace {

constexpr int kSaid = 3;

struct Pipe {
  Pipe() {
    if (::pipe2(ends, O_CLOEXEC) != 0) std::perror("pipe2"), std::exit(kExitFailed);
  }
  ~Pipe() {
    for (int end : ends) {
      if (end >= 0) ::close(end);
    }
  }
  void close(int which) { ::close(std::exchange(ends[which], -1)); }
  int ends[2];
};

// One start: its time in seconds, or below 0.
double start_once(const std::string& address, uint64_t slow_ns) {
  Pipe said;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, said.ends[1], kSaid);
  std::string name = "/proc/self/exe", word = kStarted, to = address;
  char* arguments[] = {name.data(), word.data(), to.data(), nullptr};
  const uint64_t before = now_ns();
  burn_ns(slow_ns);
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, name.c_str(), &actions, nullptr, arguments, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    std::fprintf(stderr, "start: %s: %s\n", name.c_str(), std::strerror(failed));
    return -1;
  }
  said.close(1);
  char byte = 0;
  const bool done = ::read(said.ends[0], &byte, 1) == 1;
  const uint64_t after = now_ns();
  int status = 0;
  ::waitpid(child, &status, 0);
  const bool ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return done && ended ? static_cast<double>(after - before) * 1e-9 : -1;
}

}  // namespace

void first_operation_done() {
  if (::write(kSaid, "d", 1) != 1) std::perror("start: cannot say that the operation is done");
}

int measure_starts(const Options& options, const std::function<int(int address)>& serve) {
  ::alarm(static_cast<unsigned>(options.limit_seconds));
  Pipe told;
  const pid_t server = ::fork();
  if (server == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    told.close(0);
    std::_Exit(serve(told.ends[1]));
  }
  told.close(1);
  char address[256] = {};
  const bool listening = server > 0 && ::read(told.ends[0], address, sizeof(address) - 1) > 0;
  Samples samples;
  bool failed = !listening;
  for (uint64_t i = 0; !failed && i < options.iterations + 1; ++i) {
    const double seconds = start_once(address, options.slow_ns);
    failed = seconds < 0;
    if (i > 0) samples.add(seconds);  // the first one reads the program from the disk
  }
  rusage used{};
  ::getrusage(RUSAGE_CHILDREN, &used);  // not the server's, which has not ended
  if (server > 0) {
    ::kill(server, SIGKILL);
    ::waitpid(server, nullptr, 0);
  }
  if (failed) return refuse(options, "a start ended without its operation");
  samples.sort();
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return JsonLine(options)
      .raw("seconds", samples.json())
      .number("cpu_seconds", seconds(used.ru_utime) + seconds(used.ru_stime))
      .print_verified();
}

}  // namespace bare
