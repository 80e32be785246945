// What a run says as JSON: schema "sluice.perf/1" (docs/perf.md).
#pragma once

#include <string>

#include "tools/info/machine.h"
#include "tools/perf/run/run.h"

namespace sluice::tools {

struct Surroundings {
  Machine machine;  // as it was before anything was pinned
  bool pinned = false;
  double steal_before_seconds = 0;
};

inline constexpr const char* kSchema = "sluice.perf/1";

// One of the document's results.
Json to_json(const PerfOptions& options, const Measurement& measurement);
Json to_json(const Load& load, const Interval& interval);
// The document. A damaged last measurement is left out: it has no figures.
Json to_json(const PerfOptions& options, const Surroundings& surroundings, const ClientRun& run);

}  // namespace sluice::tools
