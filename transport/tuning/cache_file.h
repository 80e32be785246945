// The file that keeps what was measured: its place, its text, and reading and replacing it.
// Its contents are hints: the user of a value brings it into range. Knows nothing of
// environment overrides and measures nothing.
#ifndef SLUICE_TUNING_CACHE_FILE_H_
#define SLUICE_TUNING_CACHE_FILE_H_

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include <sluice/base/result.h>
#include <sluice/tuning/knobs.h>

namespace sluice::tuning {

struct Measurement {
  uint64_t value = 0;
  std::string measured;  // one line: what was compared, with figures
};
// What was measured on one machine: all knobs, in the order of knobs().
struct Record {
  std::string machine;    // machine_key()
  std::string probed_at;  // UTC, ISO 8601
  std::array<Measurement, kKnobCount> knobs;
};

// The folder: $SLUICE_CACHE_DIR, else $XDG_CACHE_HOME/sluice, else $HOME/.cache/sluice; empty
// where none of them is an absolute path, and in a set-user-id program.
std::string cache_folder();
// A name for each machine: a home may be shared by many.
std::string cache_path(std::string_view folder, std::string_view machine);

std::string encode(const Record& record);
// Errors: kCorrupt, with what is wrong: another schema, another machine, a missing or unknown line.
// Values are in range afterwards.
Result<Record> decode(std::string_view text, std::string_view machine);

// Nothing: there is no such file. Errors: kAccessDenied (not ours, or others may write or read it),
// kCorrupt. Blocks: reads a local file of at most 16 KiB.
Result<std::optional<Record>> read_record(const std::string& path, std::string_view machine);
// Replaces the file as a whole, readable by this user alone; makes the folder if need be. Errors:
// kAccessDenied, with the path and the system's reason.
Status write_record(const std::string& path, const Record& record);

}  // namespace sluice::tuning

#endif  // SLUICE_TUNING_CACHE_FILE_H_
