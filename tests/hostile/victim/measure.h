// What a process holds and what its turns cost, as JSON. Knows /proc and the library's counters.
#ifndef SLUICE_TESTS_HOSTILE_VICTIM_MEASURE_H_
#define SLUICE_TESTS_HOSTILE_VICTIM_MEASURE_H_

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include <sluice/api/context.h>

namespace sluice::hostile {

struct Holdings {
  uint64_t descriptors = 0;
  uint64_t mappings = 0;         // lines of /proc/self/maps
  uint64_t shared_mappings = 0;  // those of shared memory
  uint64_t reserved = 0;         // those that nobody may touch: address ranges of peers
  uint64_t arena_bytes = 0, arena_buffers = 0;
  uint64_t rss_anon_kib = 0;
  size_t endpoints = 0;
};
Holdings holdings(Context& context, size_t endpoints);
nlohmann::json to_json(const Holdings& held);
// Nothing is left but what the heap keeps for itself.
bool as_before(const Holdings& before, const Holdings& after);

// Processor time of this thread, in ns.
uint64_t thread_ns();

// Turns of Context::progress().
class Turns {
 public:
  size_t run(Context& context);
  nlohmann::json to_json() const;

 private:
  uint64_t count_ = 0, longest_ns_ = 0, total_ns_ = 0, over_5_ms_ = 0;
  size_t most_units_ = 0;
};

nlohmann::json counters();

}  // namespace sluice::hostile

#endif  // SLUICE_TESTS_HOSTILE_VICTIM_MEASURE_H_
