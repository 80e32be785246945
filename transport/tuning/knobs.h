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

// The largest message that may carry its payload (wire/messages.h, kMaxInlineBytes).
constexpr uint64_t kMostEager = 64 << 10;
// Beyond it a wait is a burnt core, which is what Waiting::kSpin is for.
constexpr uint64_t kMostSpinNs = 1'000'000;
// Below it a copy stays in a cache of any processor.
constexpr uint64_t kLeastStreamed = 256 << 10;

// All of them: the environment, the file, `sluice info` and `sluice tune` follow this table.
inline constexpr auto kKnobs = std::to_array<Knob>({
    {"shm_eager_bytes", &Tuning::shm_eager_bytes, 64, kMostEager, Unit::kBytes,
     "shm: messages up to here are eager, larger ones are pulled"},
    {"shm_eager_sleeping_bytes", &Tuning::shm_eager_sleeping_bytes, 64, kMostEager, Unit::kBytes,
     "shm: the same while one of the two ends sleeps"},
    {"tcp_eager_bytes", &Tuning::tcp_eager_bytes, 64, kMostEager, Unit::kBytes,
     "tcp on this machine: messages up to here go at once, larger ones when they are wanted"},
    {"spin_ns", &Tuning::spin_ns, 0, kMostSpinNs, Unit::kNanoseconds,
     "adaptive waiting polls so long before it sleeps"},
    {"stream_copy_bytes", &Tuning::stream_copy_bytes, kLeastStreamed, kNeverBytes, Unit::kBytes,
     "copies go past the caches to what was last written so many bytes of copies ago"},
    {"l2_batch_frames", &Tuning::l2_batch_frames, 1, kMostBatchFrames, Unit::kFrames,
     "l2: so many frames go to the kernel in one call"},
});
inline constexpr size_t kKnobCount = kKnobs.size();
inline constexpr const std::array<Knob, kKnobCount>& knobs() { return kKnobs; }
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
