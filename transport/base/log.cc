#include <sluice/base/log.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace sluice {
namespace {

LogLevel level_from_environment() {
  const char* text = std::getenv("SLUICE_LOG");  // settings.h logs, and so needs this
  if (text == nullptr) return LogLevel::kWarning;
  if (std::strcmp(text, "error") == 0) return LogLevel::kError;
  if (std::strcmp(text, "warning") == 0) return LogLevel::kWarning;
  if (std::strcmp(text, "info") == 0) return LogLevel::kInfo;
  if (std::strcmp(text, "debug") == 0) return LogLevel::kDebug;
  std::fprintf(stderr, "sluice: SLUICE_LOG=%s is not a level; use error, warning, info or debug\n",
               text);
  return LogLevel::kWarning;
}

std::atomic<LogLevel>& level_cell() {
  static std::atomic<LogLevel> cell{level_from_environment()};
  return cell;
}

std::mutex sink_mutex;
LogSink sink_function = nullptr;
void* sink_user = nullptr;

}  // namespace

void set_log_sink(LogSink sink, void* user) {
  std::lock_guard lock(sink_mutex);
  sink_function = sink;
  sink_user = user;
}

void set_log_level(LogLevel level) { level_cell().store(level, std::memory_order_relaxed); }

bool log_enabled(LogLevel level) { return level <= level_cell().load(std::memory_order_relaxed); }

void log(LogLevel level, std::string_view line) {
  if (!log_enabled(level)) return;
  std::lock_guard lock(sink_mutex);
  if (sink_function != nullptr) {
    sink_function(level, line, sink_user);
    return;
  }
  std::string text = "sluice: ";
  text += line;
  text += "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void LogThrottle::log(LogLevel level, std::string_view line) {
  if (!log_enabled(level)) return;
  constexpr Duration kInterval = std::chrono::seconds(10);
  std::string text(line);
  {
    std::lock_guard lock(mutex_);
    const Instant time = now();
    if (last_ && time - *last_ < kInterval) {
      ++left_out_;
      return;
    }
    last_ = time;
    if (left_out_ > 0) text += " (and " + std::to_string(left_out_) + " more like it before)";
    left_out_ = 0;
  }
  sluice::log(level, text);
}

}  // namespace sluice
