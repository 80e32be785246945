#include <sluice/base/settings.h>

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include <sluice/base/log.h>

namespace sluice {
namespace {

// Read by programs under tests/ and benchmarks/ alone; nobody is warned of them.
constexpr std::string_view kOfTestPrograms[] = {
    "SLUICE_BENCH_COUNTERS", "SLUICE_COLLECTIVE_", "SLUICE_CONTRACT_", "SLUICE_FILE_MIB",
    "SLUICE_HOSTILE_",       "SLUICE_KILL_",       "SLUICE_LAB",       "SLUICE_RELAY_",
    "SLUICE_REVOCATIONS",    "SLUICE_REVOKE_",     "SLUICE_WIRE_",
};

struct Overrides {
  std::mutex mutex;
  std::map<std::string_view, std::optional<std::string>> values;  // by the table's names
};
Overrides& overrides() {
  static Overrides all;
  return all;
}

const char* in_environment(const Setting& setting) {
  const bool guarded = setting.name == "SLUICE_TUNING" || setting.name == "SLUICE_CACHE_DIR" ||
                       setting.name == "SLUICE_RECORD";
  return guarded ? ::secure_getenv(setting.name.data()) : ::getenv(setting.name.data());
}

std::optional<uint64_t> number(const Setting& setting, std::string_view text) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || value < setting.least || value > setting.most) return std::nullopt;
  return value;
}

// Whether this value of the setting has not just been told to be wrong.
bool first_told(const Setting& setting, const std::string& text) {
  static std::mutex mutex;
  static std::map<std::string_view, std::string> told;
  std::lock_guard lock(mutex);
  auto [last, is_new] = told.try_emplace(setting.name, text);
  if (is_new) return true;
  return std::exchange(last->second, text) != text;
}

// Letters changed, left out, added, or swapped with the next one to make one word of the other.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, last, row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({changed, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

// Half of the letters behind SLUICE_ may be wrong, or the rest may be missing.
std::string_view nearest(std::string_view name) {
  const size_t common = std::string_view("SLUICE_").size();
  std::string_view best;
  size_t least = (name.size() - std::min(common, name.size())) / 2 + 1;
  for (const Setting& each : settings()) {
    size_t steps = distance(name, each.name);
    if (name.size() > common + 1 && each.name.starts_with(name)) steps = std::min<size_t>(steps, 1);
    if (steps >= least) continue;
    least = steps;
    best = each.name;
  }
  return best;
}

}  // namespace

const Setting* find_setting(std::string_view name) {
  const std::span<const Setting> all = settings();
  auto found =
      std::find_if(all.begin(), all.end(), [&](const Setting& each) { return each.name == name; });
  return found == all.end() ? nullptr : &*found;
}

std::optional<uint64_t> parse_bytes(std::string_view text) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value == 0) return std::nullopt;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  unsigned shift = 0;
  if (!unit.empty()) {
    const size_t power = std::string_view("KMGTkmgt").find(unit.front());
    if (power == std::string_view::npos) return std::nullopt;
    shift = 10 * (static_cast<unsigned>(power % 4) + 1);
    unit.remove_prefix(1);
    if (!unit.empty() && unit != "B" && unit != "iB") return std::nullopt;
  }
  if (value > std::numeric_limits<uint64_t>::max() >> shift) return std::nullopt;
  return value << shift;
}

std::string unfit(const Setting& setting, std::string_view value) {
  const auto& words = setting.words;
  bool fits = true;
  if (!words.empty()) fits = std::find(words.begin(), words.end(), value) != words.end();
  if (setting.type == SettingType::kNumber) fits = number(setting, value).has_value();
  if (setting.type == SettingType::kBytes) fits = parse_bytes(value).has_value();
  if (setting.type == SettingType::kFolder) fits = value.starts_with('/');
  if (fits) return "";
  return std::string(setting.name) + " cannot be '" + std::string(value.substr(0, 64)) +
         "'; it can be " + std::string(setting.values);
}

Status set_setting(std::string_view name, std::optional<std::string> value) {
  auto invalid = [](std::string why) {
    return Status(Code::kInvalidArgument, Scope::kContext, "base/settings", std::move(why));
  };
  const Setting* setting = find_setting(name);
  if (setting != nullptr && setting->of != SettingOf::kLibrary)
    return invalid(std::string(name) +
                   " is read by commands and tests, not by the library; set it " +
                   "in their environment");
  if (setting == nullptr) {
    const std::string_view meant = nearest(name);
    return invalid("no setting has the name '" + std::string(name.substr(0, 64)) + "'" +
                   (meant.empty() ? "" : "; did you mean " + std::string(meant) + "?") +
                   "; all: sluice info --settings");
  }
  if (value) {
    if (std::string why = unfit(*setting, *value); !why.empty()) return invalid(std::move(why));
  }
  if (name == "SLUICE_LOG") {
    const std::string level = value.value_or(std::string(setting->otherwise));
    const auto word = std::find(setting->words.begin(), setting->words.end(), level);
    set_log_level(static_cast<LogLevel>(word - setting->words.begin()));
  }
  std::lock_guard lock(overrides().mutex);
  overrides().values[setting->name] = std::move(value);
  return Status();
}

SettingSource source_of(const Setting& setting) {
  std::lock_guard lock(overrides().mutex);
  if (auto own = overrides().values.find(setting.name); own != overrides().values.end())
    return own->second ? SettingSource::kCode : SettingSource::kDefault;
  return in_environment(setting) != nullptr ? SettingSource::kEnvironment : SettingSource::kDefault;
}

std::optional<std::string> setting_text(std::string_view name) {
  const Setting* setting = find_setting(name);
  if (setting == nullptr) return std::nullopt;
  std::lock_guard lock(overrides().mutex);
  auto own = overrides().values.find(setting->name);
  if (own != overrides().values.end()) return own->second;
  const char* text = in_environment(*setting);
  return text == nullptr ? std::nullopt : std::optional<std::string>(text);
}

bool setting_is(std::string_view name, std::string_view word) {
  const std::optional<std::string> text = setting_text(name);
  return text && *text == word;
}

std::optional<uint64_t> setting_number(std::string_view name) {
  const Setting* setting = find_setting(name);
  const std::optional<std::string> text = setting_text(name);
  if (setting == nullptr || !text) return std::nullopt;
  std::optional<uint64_t> value = number(*setting, *text);
  if (!value && first_told(*setting, *text))
    log(LogLevel::kWarning, unfit(*setting, *text) + "; it is ignored");
  return value;
}

std::vector<UnknownSetting> unknown_settings(const char* const* environment) {
  std::vector<UnknownSetting> unknown;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view text(*environment);
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with("SLUICE_") || find_setting(name) != nullptr) continue;
    const bool of_a_test =
        std::any_of(std::begin(kOfTestPrograms), std::end(kOfTestPrograms),
                    [&](std::string_view begin) { return name.starts_with(begin); });
    if (!of_a_test) unknown.push_back({std::string(name), nearest(name)});
  }
  return unknown;
}

void warn_of_unknown_settings() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const UnknownSetting& each : unknown_settings(environ)) {
      log(LogLevel::kWarning,
          each.name + " is set, and nothing reads it" +
              (each.nearest.empty() ? std::string("; all: sluice info --settings")
                                    : "; did you mean " + std::string(each.nearest) + "?"));
    }
    // A size that is none is an error of the arena, and the log tells of its own level.
    for (const Setting& each : settings()) {
      const std::optional<std::string> text = setting_text(each.name);
      if (!text || each.of != SettingOf::kLibrary || each.type == SettingType::kBytes ||
          each.name == "SLUICE_LOG")
        continue;
      if (std::string why = unfit(each, *text); !why.empty() && first_told(each, *text))
        log(LogLevel::kWarning, why + "; it is ignored");
    }
  });
}

}  // namespace sluice
