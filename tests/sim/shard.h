// Which schedules are ours when Bazel shares a test out among processes (the "Test
// encyclopedia", test sharding), and the file that says we know.
#ifndef SLUICE_TESTS_SIM_SHARD_H_
#define SLUICE_TESTS_SIM_SHARD_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace sluice::sim {

struct Shard {
  uint64_t index = 0, total = 1;
  Shard() {
    const char* count = std::getenv("TEST_TOTAL_SHARDS");
    const char* place = std::getenv("TEST_SHARD_INDEX");
    if (count == nullptr || place == nullptr) return;
    total = std::strtoull(count, nullptr, 10);
    index = std::strtoull(place, nullptr, 10);
    if (const char* path = std::getenv("TEST_SHARD_STATUS_FILE")) {
      if (std::FILE* file = std::fopen(path, "w")) std::fclose(file);
    }
  }
};

}  // namespace sluice::sim

#endif  // SLUICE_TESTS_SIM_SHARD_H_
