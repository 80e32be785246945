#include "tools/info/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

#include <sluice/allocator/machine_memory.h>

namespace sluice::tools {
namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "always [madvise] never" -> "madvise"
std::string chosen(const std::string& modes) {
  size_t open = modes.find('[');
  size_t close = modes.find(']');
  return open < close && close != std::string::npos ? modes.substr(open + 1, close - open - 1)
                                                    : modes;
}

// The text after "name" and its colon, of the first line that starts so.
std::string field(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    size_t start = line.find_first_not_of(" \t", line.find(':') + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

uint64_t number_in(const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); }

uint64_t soft_limit(decltype(RLIMIT_NOFILE) resource) {
  rlimit limit;
  if (::getrlimit(resource, &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? ~uint64_t{0} : limit.rlim_cur;
}

}  // namespace

Machine read_machine() {
  Machine m;
  utsname name;
  if (::uname(&name) == 0) {
    m.host = name.nodename;
    m.kernel = std::string(name.sysname) + " " + name.release;
    m.architecture = name.machine;
  }
  m.cpu = field("/proc/cpuinfo", "model name");
  cpu_set_t set;
  m.cpus = ::sched_getaffinity(0, sizeof(set), &set) == 0
               ? CPU_COUNT(&set)
               : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  m.governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  m.memory_bytes = number_in(field("/proc/meminfo", "MemTotal")) * 1024;
  m.available_bytes = available_memory_bytes();
  m.thp = chosen(first_line("/sys/kernel/mm/transparent_hugepage/enabled"));
  m.thp_shmem = chosen(first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  m.hugetlb_free = number_in(field("/proc/meminfo", "HugePages_Free"));
  return m;
}

Limits read_limits() {
  return {.memlock_bytes = soft_limit(RLIMIT_MEMLOCK), .open_files = soft_limit(RLIMIT_NOFILE)};
}

double steal_seconds() {
  // cpu user nice system idle iowait irq softirq steal (proc(5))
  std::istringstream line(first_line("/proc/stat"));
  std::string label;
  line >> label;
  double ticks = 0;
  for (int column = 0; column < 8; ++column) {
    if (!(line >> ticks)) return 0;
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace sluice::tools
