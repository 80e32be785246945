// Checks of what a container, a sandbox or a service's limits may forbid: system calls, rights,
// sizes. Opens no context: where these fail, none can be opened.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tools/doctor/finding.h"

namespace sluice::tools {

// Whether this process is in a container, and which of its rights are missing. `root`: the folder
// that has proc and run.
Finding check_container(const std::filesystem::path& root = "/");

// kernel.yama.ptrace_scope. Shared memory maps descriptors that were sent to it, and reads no
// memory of other processes: any value will do.
Finding check_yama(const std::filesystem::path& root = "/");

// `limit`: RLIMIT_FSIZE, which counts for memfds, too; ~0: unlimited. `needed`: bytes of an arena's
// first extent.
Finding check_file_size(uint64_t limit, uint64_t needed);
// `limit`: RLIMIT_AS; ~0: unlimited. `needed`: what an arena may take.
Finding check_address_space(uint64_t limit, uint64_t needed);

// /dev/shm, which other programs use beside sluice: bytes in all and free.
Finding check_dev_shm(uint64_t total, uint64_t available);

// Makes the system calls that shared memory needs, each once.
Findings check_system_calls();

// All of them, on this machine. `arena_bytes`: what an arena may take.
Findings check_container_limits(uint64_t arena_bytes);

}  // namespace sluice::tools
