// Leveled lines to a sink the program may replace. Never called on the data path.
#ifndef SLUICE_BASE_LOG_H_
#define SLUICE_BASE_LOG_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>

#include <sluice/base/clock.h>

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

// For lines that a stranger can cause at will: one in 10 seconds, which says how many were
// left out before it. Thread: any. Usually a static object beside the call.
class LogThrottle {
 public:
  void log(LogLevel level, std::string_view line);

 private:
  std::mutex mutex_;
  std::optional<Instant> last_;
  uint64_t left_out_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_BASE_LOG_H_
