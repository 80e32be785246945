#include <sluice/tuning/knobs.h>

#include <algorithm>
#include <charconv>

namespace sluice::tuning {
namespace {

constexpr const char* kOrigin = "tuning";
struct Multiple {
  std::string_view suffix;
  uint64_t factor;
};

// How the values of a unit are written: multiples, the largest first, as value_text() tries them.
struct Spelling {
  std::array<Multiple, 3> multiples;
  std::string_view after_multiple, without_multiple;
  std::string_view example;
};

const Spelling& spelling(Unit unit) {
  static constexpr std::array<Spelling, 3> kSpellings{{
      {{{{"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}}}, "iB", " B", "16K"},
      {{{{"ms", 1'000'000}, {"us", 1'000}, {"ns", 1}}}, "", " ns", "60us"},
      {{}, "", " frames", "32"},
  }};
  return kSpellings[static_cast<size_t>(unit)];
}

}  // namespace

const Knob* find_knob(std::string_view name) {
  auto found = std::find_if(knobs().begin(), knobs().end(),
                            [&](const Knob& knob) { return knob.name == name; });
  return found == knobs().end() ? nullptr : &*found;
}

std::string knob_names() {
  std::string names;
  for (const Knob& knob : knobs()) names += (names.empty() ? "" : " ") + std::string(knob.name);
  return names;
}

uint64_t clamped(const Knob& knob, uint64_t value) {
  return std::clamp(value, knob.least, knob.most);
}

std::string value_text(const Knob& knob, uint64_t value) {
  if (knob.unit == Unit::kBytes && value >= kNeverBytes) return "never";
  const Spelling& spelled = spelling(knob.unit);
  for (const Multiple& multiple : spelled.multiples) {
    if (value == 0 || multiple.factor == 0 || value % multiple.factor != 0) continue;
    return std::to_string(value / multiple.factor) + " " + std::string(multiple.suffix) +
           std::string(spelled.after_multiple);
  }
  return std::to_string(value) + std::string(spelled.without_multiple);
}

Result<uint64_t> parse_value(const Knob& knob, std::string_view text) {
  if (knob.unit == Unit::kBytes && text == "never") return clamped(knob, kNeverBytes);
  uint64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view suffix = text.substr(static_cast<size_t>(end - text.data()));
  bool good = error == std::errc();
  uint64_t factor = 1;
  const Spelling& spelled = spelling(knob.unit);
  if (good && !suffix.empty()) {
    auto multiple = std::find_if(spelled.multiples.begin(), spelled.multiples.end(),
                                 [&](const Multiple& m) { return m.suffix == suffix; });
    good = multiple != spelled.multiples.end();
    if (good) factor = multiple->factor;
  }
  if (!good || number > UINT64_MAX / factor) {
    return Status(Code::kInvalidArgument, Scope::kContext, kOrigin,
                  "'" + std::string(text.substr(0, 40)) + "' is no value of " +
                      std::string(knob.name) + "; for example " + std::string(knob.name) + "=" +
                      std::string(spelled.example));
  }
  return clamped(knob, number * factor);
}

}  // namespace sluice::tuning
