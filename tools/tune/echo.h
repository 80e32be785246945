// The pair of processes that a path is measured with: a child that sends back what it gets, over
// one connection for each way of doing it. Knows nothing of thresholds or files.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/base/result.h>

#include "tools/perf/run/processes.h"

namespace sluice::tools {

// How the two ends of a connection are set; both ends are set alike.
struct Way {
  Tuning tuning;
  Waiting waiting = Waiting::kSpin;
};

enum class EchoPath { kShm, kTcp, kUdp };  // the last: frames of l2:// in UDP

// The largest message.
constexpr size_t most_bytes(EchoPath path) { return path == EchoPath::kUdp ? 1 << 20 : 64 << 10; }

class Echo {
 public:
  // Forks, so no context is open; connects once for each way, of which there are eight at most.
  // Errors: of processes, memory, connections.
  static Result<std::unique_ptr<Echo>> start(EchoPath path, const std::vector<Way>& ways);
  ~Echo();  // ends and reaps the child

  // `count` round trips of `bytes` by way `way`; adds the time of each in ns. Errors: kTimedOut, of
  // the connection.
  Status measure(size_t way, size_t bytes, size_t count, std::vector<double>& times_ns);

 private:
  class End;
  explicit Echo(Child child);
  Child child_;
  std::vector<std::unique_ptr<End>> ends_;
  size_t current_ = 0;  // the way on which the child listens
};

}  // namespace sluice::tools
