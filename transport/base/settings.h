// Every environment variable that sluice reads: one table, typed, and the one place that reads
// them. A program sets the same by set_setting(), or by the option that the table names.
#ifndef SLUICE_BASE_SETTINGS_H_
#define SLUICE_BASE_SETTINGS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sluice/base/status.h>

namespace sluice {

enum class SettingOf : uint8_t {
  kLibrary,  // any program that uses sluice
  kCommand,  // `sluice lab`, `sluice bench`, and what they set for what they run
  kTests,
};

enum class SettingType : uint8_t {
  kFlag,    // one word that turns it on or off
  kWord,    // one of some words
  kNumber,  // a whole number from `least` to `most`
  kBytes,   // a size: 8589934592, 8G
  kPath,    // of a file or a folder
  kFolder,  // an absolute path
  kText,    // what `values` says
};

struct Setting {
  std::string_view name;
  SettingOf of;
  SettingType type;
  std::string_view values;              // what it may be, for people: "1", "8G"
  std::vector<std::string_view> words;  // kFlag, kWord: all that it may be
  std::string_view otherwise;           // if it is not set
  std::string_view
      in_code;  // the option that says the same and goes before it; empty: set_setting()
  std::string_view meaning;
  uint64_t least = 0, most = 0;  // kNumber
};

// Sorted by who reads it, then by name.
std::span<const Setting> settings();
const Setting* find_setting(std::string_view name);

// As if the environment had it; nothing: as if it had not. For what is opened from now on. Thread:
// any. Errors: kInvalidArgument (no setting of the library has that name, or a kFlag, kWord,
// kNumber or kBytes cannot have that value; the detail says what it can be). What reads a kPath or
// kText checks it.
Status set_setting(std::string_view name, std::optional<std::string> value);

enum class SettingSource : uint8_t { kDefault, kEnvironment, kCode };
SettingSource source_of(const Setting& setting);
// What is set, as text; nothing: not set. A set-user-id program takes none of SLUICE_TUNING,
// SLUICE_CACHE_DIR and SLUICE_RECORD from its caller. Requires: the name is one of the table.
// Thread: any.
std::optional<std::string> setting_text(std::string_view name);
// kFlag and kWord: set to `word`. What it may not be is as if it were not set.
bool setting_is(std::string_view name, std::string_view word);
// kNumber. A value that it may not have is as if it were not set; the log says so once.
std::optional<uint64_t> setting_number(std::string_view name);

// "8G", "512M", "512MiB", "4096K", "1048576": binary multiples, at least one byte. Nothing for
// anything else.
std::optional<uint64_t> parse_bytes(std::string_view text);

// Why that value is none of the setting's; empty: it is one.
std::string unfit(const Setting& setting, std::string_view value);

// A variable SLUICE_... that nothing reads, and the name that is nearest (empty: none is near).
struct UnknownSetting {
  std::string name;
  std::string_view nearest;
};
// Of the environment: NAME=VALUE strings, ended by null.
std::vector<UnknownSetting> unknown_settings(const char* const* environment);
// Logs them, once in a process. Called by open_context().
void warn_of_unknown_settings();

}  // namespace sluice

#endif  // SLUICE_BASE_SETTINGS_H_
