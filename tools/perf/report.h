// What a run prints and writes: a table for people, JSON for programs.
#pragma once

#include <string>

#include "tools/info/machine.h"
#include "tools/perf/run.h"

namespace sluice::tools {

struct Surroundings {
  Machine machine;  // as it was before anything was pinned
  bool pinned = false;
  double steal_before_seconds = 0;
};

void print_header(const TestKind& test);
void print_row(const Measurement& measurement);

// Schema "sluice.perf/1". A damaged last measurement is left out: it has no figures.
Json to_json(const PerfOptions& options, const Surroundings& surroundings, const ClientRun& run);

// Whether a file can be made at `path`; else why not. Leaves nothing there.
std::string json_obstacle(const std::string& path);
// All or nothing: into a file beside it, then renamed. What is not a regular file (a
// pipe, /dev/null) is written directly; "-" is stdout.
Status write_json(const std::string& path, const Json& document);

}  // namespace sluice::tools
