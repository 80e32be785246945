// What this process has used of the machine so far, by getrusage(2).
#pragma once

#include <cstdint>

namespace sluice::tools {

struct Usage {
  uint64_t user_ns = 0, system_ns = 0;  // CPU time in the program, and in the kernel for it
  uint64_t voluntary_switches = 0;      // it waited
  uint64_t involuntary_switches = 0;    // its CPU was taken
  uint64_t page_faults = 0;

  Usage& operator+=(const Usage& other);
  Usage operator-(const Usage& before) const;
};

Usage process_usage();

}  // namespace sluice::tools
