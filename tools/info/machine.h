// Facts about this machine and this process that figures depend on. Reads /proc, /sys and
// limits; knows nothing of sluice.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::tools {

struct Machine {
  std::string host;
  std::string kernel;  // "Linux 6.1.0-18-amd64"
  std::string architecture;
  std::string cpu;       // model name
  int cpus = 0;          // that this process may use
  std::string governor;  // of the first CPU; empty where unreadable
  uint64_t memory_bytes = 0;
  uint64_t available_bytes = 0;
  std::string thp;            // the mode chosen for anonymous memory, for example "madvise"
  std::string thp_shmem;      // for shared memory
  uint64_t hugetlb_free = 0;  // pages of the default size
};
Machine read_machine();

// Soft limits; ~0: unlimited.
struct Limits {
  uint64_t memlock_bytes = 0;
  uint64_t open_files = 0;
};
Limits read_limits();

// Time that the hypervisor gave to others, over all CPUs, since boot, in seconds.
double steal_seconds();

}  // namespace sluice::tools
