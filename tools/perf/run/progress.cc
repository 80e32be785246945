#include "tools/perf/run/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace sluice::tools {
namespace {

// A terminal is written to no more often than this, and people see it.
constexpr Duration kLeastTime = std::chrono::milliseconds(100);

}  // namespace

std::string progress_text(const PerfOptions& options, uint64_t size_bytes, double part) {
  std::string run =
      options.runs > 1 ? fmt::format("[{}/{}] ", options.run_number, options.runs) : "";
  auto at = std::find(options.sizes.begin(), options.sizes.end(), size_bytes);
  std::string place =
      options.sizes.size() > 1
          ? fmt::format(" ({} of {})", at - options.sizes.begin() + 1, options.sizes.size())
          : "";
  return fmt::format("{}{} {} bytes{}: {:.0f} %", run, options.test->name, size_bytes, place,
                     std::clamp(part, 0.0, 1.0) * 100);
}

Progress::Progress(const PerfOptions& options)
    : options_(options),
      terminal_(::isatty(STDERR_FILENO) == 1),
      visible_(options.progress == ProgressWhen::kAlways ||
               (options.progress == ProgressWhen::kAuto && terminal_)) {}

void Progress::show(uint64_t size_bytes, double part) {
  if (!visible_) return;
  bool another = size_ != size_bytes;
  size_ = size_bytes;
  if (!terminal_) {
    if (another) fmt::print(stderr, "sluice perf: {}\n", progress_text(options_, size_bytes, part));
    return;
  }
  Instant now = sluice::now();
  if (!another && written_ && now - last_ < kLeastTime) return;
  last_ = now;
  written_ = true;
  fmt::print(stderr, "\r\033[K{}", progress_text(options_, size_bytes, part));
  std::fflush(stderr);
}

void Progress::clear() {
  if (!written_) return;
  written_ = false;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

}  // namespace sluice::tools
