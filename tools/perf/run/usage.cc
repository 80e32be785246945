#include "tools/perf/run/usage.h"

#include <sys/resource.h>

namespace sluice::tools {
namespace {

uint64_t nanoseconds(const timeval& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<uint64_t>(time.tv_usec) * 1000;
}

}  // namespace

Usage& Usage::operator+=(const Usage& other) {
  user_ns += other.user_ns;
  system_ns += other.system_ns;
  voluntary_switches += other.voluntary_switches;
  involuntary_switches += other.involuntary_switches;
  page_faults += other.page_faults;
  return *this;
}

Usage Usage::operator-(const Usage& before) const {
  return {user_ns - before.user_ns, system_ns - before.system_ns,
          voluntary_switches - before.voluntary_switches,
          involuntary_switches - before.involuntary_switches, page_faults - before.page_faults};
}

Usage process_usage() {
  rusage now{};
  (void)::getrusage(RUSAGE_SELF, &now);  // cannot fail for a process itself
  return {nanoseconds(now.ru_utime), nanoseconds(now.ru_stime), static_cast<uint64_t>(now.ru_nvcsw),
          static_cast<uint64_t>(now.ru_nivcsw),
          static_cast<uint64_t>(now.ru_minflt + now.ru_majflt)};
}

}  // namespace sluice::tools
