// How many system calls this process makes: the kernel's own count, of its tracepoint
// raw_syscalls:sys_enter (perf_event_open(2)). While one exists every process of the machine takes
// the kernel's slower way into a system call: nothing is to be timed meanwhile.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include <sluice/base/result.h>

namespace sluice::tools {

class SystemCallCounter {
 public:
  // Counts those of all threads that there are, and of all that they start. Its own are left out.
  // Errors: kUnsupported, with what the kernel or the privileges lack, and the remedy.
  static Result<SystemCallCounter> open();
  SystemCallCounter(SystemCallCounter&& other) noexcept { descriptors_.swap(other.descriptors_); }
  SystemCallCounter& operator=(SystemCallCounter&&) = delete;
  ~SystemCallCounter();

  void start() { before_ = sum(); }
  // Since start(), by any thread. Requires: on the thread that called start().
  uint64_t stop() const;

 private:
  SystemCallCounter() = default;
  Status open_for(uint64_t tracepoint, const std::set<int>& threads);
  uint64_t sum() const;

  std::vector<int> descriptors_;  // a descriptor for each thread
  uint64_t before_ = 0;
};

}  // namespace sluice::tools
