// How far a run is, on stderr: a line that is written over on a terminal, and a line for each size
// elsewhere.
#pragma once

#include <optional>
#include <string>

#include <sluice/base/clock.h>

#include "tools/perf/flags/plan.h"

namespace sluice::tools {

class Progress {
 public:
  explicit Progress(const PerfOptions& options);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;

  // `part`: of the size that is being measured, from 0 to 1. Costs nothing where nothing is shown.
  void show(uint64_t size_bytes, double part);
  // Before anything else is written.
  void clear();

 private:
  const PerfOptions& options_;
  bool terminal_, visible_;
  std::optional<uint64_t> size_;  // the one that is shown
  bool written_ = false;
  Instant last_{};
};

// What is shown, without what brings it to its place.
std::string progress_text(const PerfOptions& options, uint64_t size_bytes, double part);

}  // namespace sluice::tools
