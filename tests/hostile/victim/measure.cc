#include "tests/hostile/victim/measure.h"

#include <dirent.h>
#include <time.h>

#include <algorithm>
#include <fstream>

#include <sluice/base/counters.h>

namespace sluice::hostile {
namespace {

// What a heap may keep of what it once held: arenas and large blocks that it has not given back.
constexpr uint64_t kHeapMappings = 24;

uint64_t count_in(const char* folder) {
  uint64_t count = 0;
  DIR* directory = ::opendir(folder);
  if (directory == nullptr) return 0;
  while (dirent* entry = ::readdir(directory)) count += entry->d_name[0] != '.' ? 1 : 0;
  ::closedir(directory);
  return count - 1;  // the one that looks
}

}  // namespace

Holdings holdings(Context& context, size_t endpoints) {
  Holdings held;
  held.descriptors = count_in("/proc/self/fd");
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    ++held.mappings;
    size_t rights = line.find(' ') + 1;
    held.shared_mappings += line[rights + 3] == 's' ? 1 : 0;
    // Guard pages of the heap and of stacks belong to somebody; a peer's range stands alone and is
    // anonymous.
    held.reserved +=
        line.compare(rights, 4, "---p") == 0 && line.find('/') == std::string::npos ? 1 : 0;
  }
  ArenaStatistics arena = context.arena().statistics();
  held.arena_bytes = arena.used_bytes;
  held.arena_buffers = arena.outstanding;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "RssAnon:") status >> held.rss_anon_kib;
  }
  held.endpoints = endpoints;
  return held;
}

nlohmann::json to_json(const Holdings& h) {
  return {{"descriptors", h.descriptors},         {"mappings", h.mappings},
          {"shared_mappings", h.shared_mappings}, {"reserved", h.reserved},
          {"arena_bytes", h.arena_bytes},         {"arena_buffers", h.arena_buffers},
          {"rss_anon_kib", h.rss_anon_kib},       {"endpoints", h.endpoints}};
}

bool as_before(const Holdings& before, const Holdings& after) {
  return after.endpoints <= before.endpoints && after.descriptors <= before.descriptors &&
         after.shared_mappings <= before.shared_mappings &&
         after.arena_buffers <= before.arena_buffers && after.arena_bytes <= before.arena_bytes &&
         after.mappings <= before.mappings + kHeapMappings;
}

uint64_t thread_ns() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

size_t Turns::run(Context& context) {
  uint64_t start = thread_ns();
  size_t units = context.progress();
  uint64_t took = thread_ns() - start;
  ++count_;
  total_ns_ += took;
  longest_ns_ = std::max(longest_ns_, took);
  over_5_ms_ += took > 5'000'000 ? 1 : 0;
  most_units_ = std::max(most_units_, units);
  return units;
}

nlohmann::json Turns::to_json() const {
  return {{"count", count_},
          {"longest_us", longest_ns_ / 1000},
          {"total_us", total_ns_ / 1000},
          {"over_5_ms", over_5_ms_},
          {"most_units", most_units_},
          {"process_us", thread_ns() / 1000}};
}

nlohmann::json counters() {
  nlohmann::json all = nlohmann::json::object();
  for (const auto& [name, value] : read_counters()) {
    if (value > 0) all[std::string(name)] = value;
  }
  return all;
}

}  // namespace sluice::hostile
