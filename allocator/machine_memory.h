// How much memory the machine (or the cgroup) has.
#ifndef SLUICE_ALLOCATOR_MACHINE_MEMORY_H_
#define SLUICE_ALLOCATOR_MACHINE_MEMORY_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sluice/base/result.h>

namespace sluice {

// "64 MiB", with one decimal where it is not whole.
std::string mebibytes(size_t bytes);

// Bytes of the line "key:  123 kB" in the text of /proc/meminfo.
std::optional<size_t> meminfo_value(std::string_view meminfo, std::string_view key);

// The folders of the cgroups above a process that may limit its memory (version 2: any ancestor
// can), its own first, by the text of its /proc/self/cgroup.
std::vector<std::string> cgroup_folders(std::string_view own_cgroups);

// What a process in a cgroup can take: its limit less what it uses, but for clean pages of files,
// which go when memory is short. `statistics`: the text of its memory.stat.
size_t cgroup_room(size_t limit, size_t used, std::string_view statistics);

// Installed memory, or the cgroup's limit where that is lower.
size_t machine_memory_bytes();
// What can be taken now before the system starts to kill processes.
size_t available_memory_bytes();

// The limit of an arena whose options name none: `environment` (the text of
// SLUICE_ARENA_LIMIT; null if unset), else half of `machine_bytes`, but no more than an arena can
// have (1 TiB).
// Errors: kInvalidArgument (the variable does not parse).
Result<size_t> default_arena_limit(const char* environment, size_t machine_bytes);

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_MACHINE_MEMORY_H_
