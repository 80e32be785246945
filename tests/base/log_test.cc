#include <sluice/base/log.h>

#include <catch2/catch.hpp>

#include <string>
#include <vector>

namespace sluice {
namespace {

struct Lines {
  Lines() { set_log_sink(&Lines::take, this); }
  ~Lines() {
    set_log_sink(nullptr, nullptr);
    set_log_level(LogLevel::kWarning);
  }
  static void take(LogLevel level, std::string_view line, void* user) {
    static_cast<Lines*>(user)->lines.emplace_back(level, std::string(line));
  }
  std::vector<std::pair<LogLevel, std::string>> lines;
};

TEST_CASE("lines up to the level reach the sink, others do not") {
  Lines got;
  for (LogLevel level : {LogLevel::kError, LogLevel::kWarning, LogLevel::kInfo, LogLevel::kDebug}) {
    set_log_level(level);
    got.lines.clear();
    for (LogLevel of : {LogLevel::kError, LogLevel::kWarning, LogLevel::kInfo, LogLevel::kDebug}) {
      CHECK(log_enabled(of) == (of <= level));
      log(of, "a line");
    }
    CHECK(got.lines.size() == static_cast<size_t>(level) + 1);
    CHECK(got.lines.back() == std::pair(level, std::string("a line")));
  }
}

TEST_CASE("of many lines that a stranger causes one is written") {
  int lines = 0;
  set_log_sink([](LogLevel, std::string_view, void* user) { ++*static_cast<int*>(user); }, &lines);
  LogThrottle throttle, other;
  for (int i = 0; i < 1000; ++i) throttle.log(LogLevel::kWarning, "again");
  CHECK(lines == 1);
  other.log(LogLevel::kWarning, "another");
  CHECK(lines == 2);
  set_log_sink(nullptr, nullptr);
}

}  // namespace
}  // namespace sluice
