// A whole run over one connected endpoint, and others beside it (--qps): the client leads through
// sizes and rounds and has the figures; the server follows.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/perf/report/confidence.h"
#include "tools/perf/report/statistics.h"
#include "tools/perf/load/stripes.h"
#include "tools/perf/run/usage.h"

namespace sluice::tools {

// Version of the protocol between a client and its server; each says it in its first message (the
// oldest said none). It goes up when a server could take a client's request for another one: a
// server refuses requests that it does not know in any case. A server follows clients of its own
// version and of all older ones.
inline constexpr uint64_t kPerfProtocol = 1;

// A part of a run by duration (--interval). Seconds count while the clock runs.
struct Interval {
  double from_seconds = 0, to_seconds = 0;
  uint64_t iterations = 0;
  uint64_t messages = 0;  // in both directions, as payload_bytes
  uint64_t payload_bytes = 0;

  double seconds() const { return to_seconds - from_seconds; }
};

// System calls of a round of its own, after those that are timed (--system-calls).
struct SystemCalls {
  uint64_t messages = 0;  // of the round, in both directions
  std::optional<uint64_t> here, there;
  std::string why_not_here, why_not_there;
};

// The same size once more, beside a flow of ours (--under-load).
struct Loaded {
  FlowLoad flow;
  uint64_t flow_messages = 0;  // that ended while it was timed
  uint64_t iterations = 0;
  double seconds = 0;
  Distribution latency_ns;
  std::vector<double> percentiles_ns;
};

// A second figure of the same size, which a test of one process has (companion_of()).
struct Companion {
  std::string_view name;
  uint64_t iterations = 0;
  uint64_t payload_bytes = 0;
  double seconds = 0;
  Distribution latency_ns;
  std::vector<double> percentiles_ns;
};

// The figure of each run of one size (--confidence).
struct RepeatedFigure {
  std::vector<double> values;  // of latency tests the medians in ns, else bytes per second
  MeanInterval interval;
  bool reached = false;  // it is as narrow as was asked for
};

// One size of one test.
struct Measurement {
  Load load;
  uint64_t iterations = 0;
  uint64_t messages = 0;  // in both directions, as payload_bytes
  uint64_t payload_bytes = 0;
  double seconds = 0;
  Distribution latency_ns;
  std::vector<double> percentiles_ns;  // those asked for, in their order
  std::vector<Bin> histogram_ns;       // where asked for
  std::vector<double>
      sorted_ns;  // all samples: where perftest's histogram was asked for, which lists them
  std::vector<double> first_handover_ns;
  double cpu_ns = 0;                        // both processes
  Usage used_here;                          // the client's process
  std::optional<Usage> used_there;          // the server's, where it is another and says so
  std::optional<RepeatedFigure> repeated;   // where asked for
  std::optional<Loaded> loaded;             // where asked for
  std::optional<Companion> companion;       // of tests of one process
  uint64_t copies_per_iteration = 1;        // of memcpy
  std::optional<SystemCalls> system_calls;  // where asked for
  double paused_seconds = 0;                // between messages, while it was timed
  Buffers buffers_here;
  std::optional<Buffers> buffers_there;  // where the server says it
  std::vector<Interval> intervals;
  Copies copied;                      // by CPUs of both sides
  Copies copied_here;                 // of these, the client's
  std::vector<uint64_t> bytes_by_qp;  // what each connection carried while it was timed
  Verdict verdict;                    // both sides
  std::string path;                   // what carried it
};

struct ClientRun {
  std::vector<Measurement> measurements;
  std::vector<std::string> warnings;
  EndpointInfo link;
  std::string server_version;  // empty where the server did not say it
  bool corrupt = false;        // the last measurement's payload was damaged: no figures of it
};

struct RunOptions {
  const PerfOptions* perf = nullptr;
  // Both sides are threads of one process: its CPU time is counted once.
  bool one_process = false;
  // One more connection between the two: the client asks for it, the server accepts it.
  std::function<Result<Endpoint>()> next;
  // As each ends; null: none are wanted.
  std::function<void(const Load&, const Interval&)> on_interval;
  // How much of a size is done, between rounds; null: nobody asks.
  std::function<void(uint64_t size_bytes, double part)> on_progress;
  // A server's: a client says its first word within this, or makes room for the next.
  Duration first_word_limit = std::chrono::seconds(20);
  // A server's: it runs the test that its client names, and is told whether others follow. Null:
  // its own test.
  std::optional<uint64_t>* runs_after = nullptr;
};

// Calls on_result after each size. Closes the endpoint, also on failure.
Status run_client(Context& context, Endpoint& endpoint, const RunOptions& options, ClientRun& out,
                  const std::function<void(const Measurement&)>& on_result);

// Follows one client to its end. Returns whether this side found its data intact.
Result<bool> run_server(Context& context, Endpoint& endpoint, const RunOptions& options);

}  // namespace sluice::tools
