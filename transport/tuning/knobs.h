// The thresholds by name: their ranges, and values as text. Knows no file, no environment and
// no path.
#ifndef SLUICE_TUNING_KNOBS_H_
#define SLUICE_TUNING_KNOBS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <sluice/api/tuning.h>
#include <sluice/base/result.h>

namespace sluice::tuning {

enum class Unit : uint8_t { kBytes, kNanoseconds, kFrames };

// What is read from outside is brought into [least, most].
struct Knob {
  std::string_view name;
  uint64_t Tuning::*value;
  uint64_t least, most;
  Unit unit;
  std::string_view what;
};

inline constexpr size_t kKnobCount = 6;
const std::array<Knob, kKnobCount>& knobs();
// Null: there is none of that name.
const Knob* find_knob(std::string_view name);
// The names, for messages.
std::string knob_names();

uint64_t clamped(const Knob& knob, uint64_t value);
// "16 KiB", "60 us", "32 frames", "never".
std::string value_text(const Knob& knob, uint64_t value);
// "16384", "16K", "4M", "never" for bytes; "60000" (ns), "60us", "1ms" for times, "32" for frames.
// Errors: kInvalidArgument, with an example.
Result<uint64_t> parse_value(const Knob& knob, std::string_view text);

}  // namespace sluice::tuning

#endif  // SLUICE_TUNING_KNOBS_H_
