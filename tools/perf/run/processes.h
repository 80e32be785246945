// The second process of `--self`: forked before any context is opened, ended and reaped
// whatever happens. And the CPU a process stays on. Knows nothing of tests.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <functional>
#include <string>

#include <sluice/base/clock.h>
#include <sluice/base/result.h>

namespace sluice::tools {

// A forked child that runs `body` and exits with its result. `body` gets the descriptor
// of a pipe to the parent. The child dies with its parent.
class Child {
 public:
  // Requires: no context open, one thread. Errors: kNoMemory (processes, descriptors).
  static Result<Child> start(const std::function<int(int pipe_to_parent)>& body);
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();  // kills and reaps what still runs

  // What the child wrote, up to a newline. Errors: kTimedOut, kUnreachable (it ended).
  Result<std::string> read_line(Duration limit);
  // Waits for its end, kills it after `limit`. Its exit code; 128 + n when a signal ended it.
  int reap(Duration limit);

 private:
  Child(pid_t pid, int pipe) : pid_(pid), pipe_(pipe) {}
  pid_t pid_;
  int pipe_;
};

// CPUs that this thread may run on.
int usable_cpus();
// Keeps this thread on the `index`-th CPU that it may use. False: the kernel refused.
bool stay_on_cpu(int index);

// The CPUs that this thread may use are, at its end, those of its beginning.
class SameCpus {
 public:
  SameCpus() : known_(::sched_getaffinity(0, sizeof(before_), &before_) == 0) {}
  SameCpus(const SameCpus&) = delete;
  ~SameCpus() {
    if (known_) (void)::sched_setaffinity(0, sizeof(before_), &before_);
  }

 private:
  cpu_set_t before_;
  bool known_;
};

}  // namespace sluice::tools
