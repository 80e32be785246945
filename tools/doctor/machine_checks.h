// Checks of this machine and this process that hold for every path: memory, descriptors, clock,
// load, addresses, environment. Opens no connection.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tools/doctor/finding.h"

namespace sluice::tools {

// The smallest memory.max from this process's control group (version 2) up to the top, in bytes;
// nothing: no limit. `root`: the folder that has proc and sys.
std::optional<uint64_t> memory_ceiling(const std::filesystem::path& root = "/");

// `limit_bytes`: how much an arena of this process may take.
Finding check_memory(uint64_t limit_bytes, uint64_t machine_bytes,
                     std::optional<uint64_t> ceiling_bytes);
// `limit`: RLIMIT_NOFILE; ~0: unlimited.
Finding check_open_files(uint64_t limit);
// `source`: as /sys/devices/system/clocksource/clocksource0/current_clocksource has it; empty: not
// known.
Finding check_clock(const std::string& source);
// `load`: processes that ran or waited to run in the last minute; `stolen`: part of the time (0 to
// 1) that the hypervisor gave to others just now.
Finding check_load(double load, int cpus, double stolen);

struct InterfaceAddress {
  std::string interface;
  std::string address;  // "192.0.2.1"
};
std::vector<InterfaceAddress> read_addresses();
Finding check_addresses(const std::vector<InterfaceAddress>& addresses);

struct Variable {
  std::string name, value;
};
// Finds variables of sluice's name that nothing reads, or whose value means nothing.
Finding check_variables(const std::vector<Variable>& variables);

// All of the above but the load, on this machine.
Findings check_machine(uint64_t arena_limit_bytes);

// The load, and what the hypervisor took since `stolen_before` (steal_seconds()) was read,
// `seconds` ago.
Finding check_load_since(double stolen_before, double seconds);

}  // namespace sluice::tools
