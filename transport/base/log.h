// Leveled lines to a sink the program may replace. Never called on the data path.
#ifndef SLUICE_BASE_LOG_H_
#define SLUICE_BASE_LOG_H_

#include <string_view>

namespace sluice {

enum class LogLevel : int { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

using LogSink = void (*)(LogLevel level, std::string_view line, void* user);

// Default: lines up to the level of $SLUICE_LOG (error|warning|info|debug,
// default warning) on stderr. A null sink restores that.
// Thread: any; the sink must be callable from any thread.
void set_log_sink(LogSink sink, void* user);
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
void log(LogLevel level, std::string_view line);

}  // namespace sluice

#endif  // SLUICE_BASE_LOG_H_
