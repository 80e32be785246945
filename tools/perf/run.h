// A whole run over one connected endpoint: the client leads through sizes and rounds and
// has the figures; the server follows.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/perf/statistics.h"
#include "tools/perf/workload.h"

namespace sluice::tools {

// One size of one test.
struct Measurement {
  Load load;
  uint64_t iterations = 0;
  uint64_t payload_bytes = 0;  // in both directions
  double seconds = 0;
  Distribution latency_ns;
  std::vector<double> first_handover_ns;
  double cpu_ns = 0;           // both processes
  Copies copied;               // by CPUs of both sides
  Verdict verdict;             // both sides
  std::string path;            // what carried it
};

struct ClientRun {
  std::vector<Measurement> measurements;
  std::vector<std::string> warnings;
  EndpointInfo link;
  bool corrupt = false;  // the last measurement's payload was damaged: no figures of it
};

struct RunOptions {
  const PerfOptions* perf = nullptr;
  // Both sides are threads of one process: its CPU time is counted once.
  bool one_process = false;
};

// Bytes that CPUs on this side have copied for payload so far.
inline Copies payload_copies(const Endpoint& endpoint, const ControlChannel& control) {
  EndpointCounters counters = endpoint.counters();
  return Copies{counters.copied_bytes, counters.kernel_copied_bytes} - control.copies();
}

// Calls on_result after each size. Closes the endpoint, also on failure.
Status run_client(Context& context, Endpoint& endpoint, const RunOptions& options, ClientRun& out,
                  const std::function<void(const Measurement&)>& on_result);

// Follows one client to its end. Returns whether this side found its data intact.
Result<bool> run_server(Context& context, Endpoint& endpoint, const RunOptions& options);

}  // namespace sluice::tools
