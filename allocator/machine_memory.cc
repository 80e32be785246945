#include "allocator/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>

#include <sluice/base/checked.h>
#include <sluice/base/settings.h>

#include "allocator/size_classes.h"

namespace sluice {
namespace {

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// A whole small file; empty when it cannot be read.
std::string read_small_file(const std::string& path) {
  std::string text;
  if (FILE* file = std::fopen(path.c_str(), "re")) {
    char piece[4096];
    while (size_t n = std::fread(piece, 1, sizeof piece, file)) text.append(piece, n);
    std::fclose(file);
  }
  return text;
}

std::optional<size_t> read_number(const std::string& path) {
  std::string text = read_small_file(path);
  size_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;  // "max" among them
  return value;
}

template <typename Visit>
void for_each_cgroup(Visit visit) {
  for (const std::string& folder : cgroup_folders(read_small_file("/proc/self/cgroup")))
    visit(folder);
}

}  // namespace

std::string mebibytes(size_t bytes) {
  char text[32];
  constexpr double kMebibyte = 1 << 20;
  bool whole = bytes % (size_t{1} << 20) == 0;
  std::snprintf(text, sizeof text, whole ? "%.0f MiB" : "%.1f MiB",
                static_cast<double>(bytes) / kMebibyte);
  return text;
}

std::optional<size_t> meminfo_value(std::string_view meminfo, std::string_view key) {
  size_t at = 0;
  while (at < meminfo.size()) {
    size_t end = std::min(meminfo.find('\n', at), meminfo.size());
    std::string_view line = meminfo.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ':') continue;
    line.remove_prefix(key.size() + 1);
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    size_t kilobytes = 0;
    auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), kilobytes);
    if (error != std::errc() || stop == line.data()) return std::nullopt;
    return checked_multiply(kilobytes, size_t{1024});
  }
  return std::nullopt;
}

std::vector<std::string> cgroup_folders(std::string_view own_cgroups) {
  std::vector<std::string> folders;
  // Of version 2, which has number 0 and no controllers; on some machines beside those of
  // version 1.
  size_t start = own_cgroups.starts_with("0::") ? 0 : own_cgroups.find("\n0::");
  if (start == std::string_view::npos) return folders;
  start = own_cgroups.find("0::", start) + 3;
  std::string path(own_cgroups.substr(start, own_cgroups.find('\n', start) - start));
  while (true) {
    folders.push_back("/sys/fs/cgroup" + path);
    size_t slash = path.rfind('/');
    if (slash == std::string::npos || path.size() <= 1) return folders;
    path.resize(slash);
  }
}

size_t cgroup_room(size_t limit, size_t used, std::string_view statistics) {
  const std::string text = "\n" + std::string(statistics);
  auto value = [&](const char* name) {
    const std::string key = "\n" + std::string(name) + " ";
    const size_t found = text.find(key);
    size_t bytes = 0;  // of a file that is not there: nothing goes
    if (found != std::string::npos)
      std::from_chars(text.data() + found + key.size(), text.data() + text.size(), bytes);
    return bytes;
  };
  // Of files in use half is left where it is: without its programs nobody gets on.
  const size_t files = value("inactive_file") + value("active_file") / 2;
  // These have to be written first.
  const size_t dirty = value("file_dirty") + value("file_writeback");
  const size_t goes = files - std::min(files, dirty);
  const size_t stays = used - std::min(used, goes);
  return limit - std::min(limit, stays);
}

size_t machine_memory_bytes() {
  size_t bytes = meminfo_value(read_small_file("/proc/meminfo"), "MemTotal").value_or(kUnlimited);
  for_each_cgroup([&](const std::string& folder) {
    bytes = std::min(bytes, read_number(folder + "/memory.max").value_or(kUnlimited));
  });
  // Without /proc we still need a number.
  return bytes != kUnlimited ? bytes
                             : static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) *
                                   static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t available_memory_bytes() {
  size_t bytes =
      meminfo_value(read_small_file("/proc/meminfo"), "MemAvailable").value_or(kUnlimited);
  for_each_cgroup([&](const std::string& folder) {
    std::optional<size_t> most = read_number(folder + "/memory.max");
    std::optional<size_t> used = read_number(folder + "/memory.current");
    if (most && used) {
      const size_t room = cgroup_room(*most, *used, read_small_file(folder + "/memory.stat"));
      bytes = std::min(bytes, room);
    }
  });
  return bytes;
}

Result<size_t> default_arena_limit(const char* environment, size_t machine_bytes) {
  if (environment == nullptr) return std::min(machine_bytes / 2, kLargestClassBytes);
  if (std::optional<uint64_t> bytes = parse_bytes(environment)) return size_t{*bytes};
  return Status(Code::kInvalidArgument, Scope::kContext, "allocator/machine_memory",
                "SLUICE_ARENA_LIMIT=" + std::string(environment) +
                    " is not a size; write for example SLUICE_ARENA_LIMIT=8G");
}

}  // namespace sluice
