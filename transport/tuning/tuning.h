// This machine's thresholds: what was measured, what the environment says, and where each comes
// from (docs/tuning.md). Measures nothing itself: `sluice tune` does, and nothing else writes the
// file.
#ifndef SLUICE_TUNING_TUNING_H_
#define SLUICE_TUNING_TUNING_H_

#include <array>
#include <cstdint>
#include <string>

#include <sluice/api/tuning.h>
#include <sluice/base/result.h>
#include <sluice/tuning/knobs.h>

namespace sluice::tuning {

enum class Source : uint8_t { kDefault, kProbe, kEnvironment };

// One threshold: its value and why it has it.
struct Chosen {
  uint64_t value = 0;
  Source source = Source::kDefault;
  std::string why;  // kProbe: what was measured; kEnvironment: the variable
};

struct Tuned {
  Tuning values;
  std::array<Chosen, kKnobCount> knobs;  // in the order of knobs()
  std::string machine;                   // machine_key()
  std::string file;                      // where measurements are kept; empty: there is no place
  std::string file_state;                // "read", "none", "not asked", or why it was refused
  std::string probed_at;                 // empty: no measurement is used
};

// The usual values, then the file's, then those of $SLUICE_TUNING
// ("spin_ns=0,shm_eager_bytes=8K"; "defaults" alone or first: the file is not read). A file that
// is refused is one line in the log. Errors: kInvalidArgument ($SLUICE_TUNING).
// Cost: a small file read, some tens of microseconds.
Result<Tuned> read_tuning();

}  // namespace sluice::tuning

#endif  // SLUICE_TUNING_TUNING_H_
