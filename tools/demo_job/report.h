// What the demo job prints and writes: figures from samples, the table, the JSON of
// schema sluice.demo/1, the progress bar. Starts nothing.
#ifndef SLUICE_TOOLS_DEMO_JOB_REPORT_H_
#define SLUICE_TOOLS_DEMO_JOB_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/demo_job/job.h"

namespace sluice::tools::demo {

// All visits of one mode on one path.
struct Series {
  Mode mode = Mode::kZerocopy;
  Route route = Route::kShm;
  std::vector<Sample> samples;
  std::string failure;
  std::string corruption;
  uint64_t chunk_bytes = 0;
  int restarts = 0;
  std::vector<size_t> rounds;  // how many samples each visit added
  bool verified() const { return failure.empty() && corruption.empty() && !samples.empty(); }
};

// A path that was asked for and that this machine has not, for one mode or for all.
struct Missing {
  Route route = Route::kRdma;
  std::optional<Mode> mode = {};
  std::string reason;
};

struct Spread {
  double median = 0, min = 0, max = 0;
};

struct Figures {
  Spread step_seconds, pull_seconds;
  uint64_t bytes_per_step = 0;       // weights and gradients, all workers
  double bytes_per_second = 0;       // bytes_per_step over the median step
  double pull_bytes_per_second = 0;  // the workers' weights over the median pull
  double cpu_seconds_per_gb = 0;
  std::optional<double> copied_bytes_per_byte;  // none: not countable (gRPC)
  std::optional<double> ratio_to_grpc;          // none: no mode of plain gRPC on that path
  std::optional<double> ratio_to_grpc_unary;
  uint64_t arena_bytes = 0;                // most of all processes together; 0: unknown
  std::optional<double> ratio_to_by_hand;  // mode graph: zerocopy's median step over the own
  uint64_t fetches = 0, views = 0;         // of the measured steps, by receipts
};

// One entry per series; nothing for a series that is not verified.
std::vector<std::optional<Figures>> figures_of(const std::vector<Series>& all,
                                               const JobOptions& options);

std::string table(const std::vector<Series>& all,
                  const std::vector<std::optional<Figures>>& figures,
                  const std::vector<Missing>& missing = {});
std::string json(const std::vector<Series>& all, const std::vector<std::optional<Figures>>& figures,
                 const JobOptions& options, int rounds, const std::vector<Missing>& missing = {});

// Drawn on stderr, only where that is a terminal; cleared at the end.
class ProgressBar {
 public:
  explicit ProgressBar(int64_t steps);
  ~ProgressBar();
  void step_done(const std::string& what);

 private:
  int64_t steps_;
  int64_t done_ = 0;
  bool visible_;
};

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_REPORT_H_
