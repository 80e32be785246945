#include <sluice/tuning/tuning.h>

#include <stdlib.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include <sluice/base/log.h>
#include <sluice/base/settings.h>
#include <sluice/tuning/cache_file.h>
#include <sluice/tuning/machine.h>

namespace sluice::tuning {
namespace {

constexpr const char* kOrigin = "tuning";
constexpr const char* kVariable = "SLUICE_TUNING";
constexpr std::string_view kDefaults = "defaults";

void set(Tuned& tuned, const Knob& knob, Chosen chosen) {
  tuned.values.*knob.value = chosen.value;
  tuned.knobs[static_cast<size_t>(&knob - knobs().data())] = std::move(chosen);
}

void take_file(Tuned& tuned) {
  std::string folder = cache_folder();
  tuned.file_state = "none";
  if (folder.empty()) return;
  tuned.file = cache_path(folder, tuned.machine);
  Result<std::optional<Record>> record = read_record(tuned.file, tuned.machine);
  if (!record.ok()) {
    tuned.file_state = std::string("refused: ") + std::string(record.status().detail());
    log(LogLevel::kWarning, tuned.file + " is not used: " + record.status().to_string() +
                                "; the usual thresholds are, until sluice tune measures anew");
    return;
  }
  if (!record->has_value()) return;
  tuned.file_state = "read";
  tuned.probed_at = (*record)->probed_at;
  for (size_t i = 0; i < kKnobCount; ++i) {
    const Measurement& one = (*record)->knobs[i];
    set(tuned, knobs()[i], {.value = one.value, .source = Source::kProbe, .why = one.measured});
  }
}

Status take_entry(Tuned& tuned, std::string_view entry) {
  size_t equals = entry.find('=');
  const Knob* knob =
      equals == std::string_view::npos ? nullptr : find_knob(entry.substr(0, equals));
  if (knob == nullptr) {
    return Status(Code::kInvalidArgument, Scope::kContext, kOrigin,
                  std::string(kVariable) + ": '" + std::string(entry.substr(0, 40)) +
                      "' sets none of " + knob_names() + "; for example " + kVariable +
                      "=spin_ns=0,shm_eager_bytes=8K");
  }
  Result<uint64_t> value = parse_value(*knob, entry.substr(equals + 1));
  if (!value.ok())
    return Status(value.code(), Scope::kContext, kOrigin,
                  std::string(kVariable) + ": " + std::string(value.status().detail()));
  set(tuned, *knob, {.value = *value, .source = Source::kEnvironment, .why = kVariable});
  return Status();
}

}  // namespace

Result<Tuned> read_tuning() {
  Tuned tuned;
  tuned.machine = machine_key();
  Tuning usual;
  for (const Knob& knob : knobs())
    set(tuned, knob, {.value = usual.*knob.value, .source = Source::kDefault, .why = ""});
  const std::string variable = setting_text(kVariable).value_or("");
  std::string_view text = variable;
  std::string_view first = text.substr(0, text.find(','));
  if (first == kDefaults) {
    tuned.file_state = "not asked";
    text.remove_prefix(std::min(text.size(), first.size() + 1));
  } else {
    take_file(tuned);
  }
  while (!text.empty()) {
    std::string_view entry = text.substr(0, text.find(','));
    SLUICE_RETURN_IF_ERROR(take_entry(tuned, entry));
    text.remove_prefix(std::min(text.size(), entry.size() + 1));
  }
  return tuned;
}

}  // namespace sluice::tuning
