#include <sluice/tuning/knobs.h>

#include <algorithm>
#include <charconv>

namespace sluice::tuning {
namespace {

constexpr const char* kOrigin = "tuning";
// The largest message that may carry its payload (wire/messages.h, kMaxInlineBytes).
constexpr uint64_t kMostEager = 64 << 10;
// Beyond it a wait is a burnt core, which is what Waiting::kSpin is for.
constexpr uint64_t kMostSpinNs = 1'000'000;
// Below it a copy stays in a cache of any processor.
constexpr uint64_t kLeastStreamed = 256 << 10;

struct Unit {
  std::string_view suffix;
  uint64_t factor;
};
// The largest first, as value_text() tries them.
constexpr std::array<Unit, 3> kByteUnits{{{"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}}};
constexpr std::array<Unit, 3> kTimeUnits{{{"ms", 1'000'000}, {"us", 1'000}, {"ns", 1}}};

}  // namespace

const std::array<Knob, kKnobCount>& knobs() {
  static constexpr std::array<Knob, kKnobCount> kKnobs{{
      {"shm_eager_bytes", &Tuning::shm_eager_bytes, 64, kMostEager, true, "shm: messages up to here ride in the ring, larger ones are pulled"},
      {"tcp_eager_bytes", &Tuning::tcp_eager_bytes, 64, kMostEager, true, "tcp on this machine: messages up to here go at once, larger ones when they are wanted"},
      {"spin_ns", &Tuning::spin_ns, 0, kMostSpinNs, false, "adaptive waiting polls so long before it sleeps"},
      {"stream_copy_bytes", &Tuning::stream_copy_bytes, kLeastStreamed, kNeverBytes, true, "copies from here on go past the caches"},
  }};
  return kKnobs;
}

const Knob* find_knob(std::string_view name) {
  auto found = std::find_if(knobs().begin(), knobs().end(), [&](const Knob& knob) { return knob.name == name; });
  return found == knobs().end() ? nullptr : &*found;
}

std::string knob_names() {
  std::string names;
  for (const Knob& knob : knobs()) names += (names.empty() ? "" : " ") + std::string(knob.name);
  return names;
}

uint64_t clamped(const Knob& knob, uint64_t value) { return std::clamp(value, knob.least, knob.most); }

std::string value_text(const Knob& knob, uint64_t value) {
  if (knob.bytes && value >= kNeverBytes) return "never";
  for (const Unit& unit : knob.bytes ? kByteUnits : kTimeUnits) {
    if (value == 0 || value % unit.factor != 0) continue;
    return std::to_string(value / unit.factor) + " " + std::string(unit.suffix) + (knob.bytes ? "iB" : "");
  }
  return std::to_string(value) + (knob.bytes ? " B" : " ns");
}

Result<uint64_t> parse_value(const Knob& knob, std::string_view text) {
  if (knob.bytes && text == "never") return clamped(knob, kNeverBytes);
  uint64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view suffix = text.substr(static_cast<size_t>(end - text.data()));
  bool good = error == std::errc();
  uint64_t factor = 1;
  if (good && !suffix.empty()) {
    const auto& units = knob.bytes ? kByteUnits : kTimeUnits;
    auto unit = std::find_if(units.begin(), units.end(), [&](const Unit& u) { return u.suffix == suffix; });
    good = unit != units.end();
    if (good) factor = unit->factor;
  }
  if (!good || number > UINT64_MAX / factor) {
    return Status(Code::kInvalidArgument, Scope::kContext, kOrigin,
                  "'" + std::string(text.substr(0, 40)) + "' is no value of " + std::string(knob.name) + "; for example " +
                      std::string(knob.name) + (knob.bytes ? "=16K" : "=60us"));
  }
  return clamped(knob, number * factor);
}

}  // namespace sluice::tuning
