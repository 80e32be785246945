// What the demo job is asked to do and what it found: options, one visit of a mode,
// samples. Values only.
#ifndef SLUICE_TOOLS_DEMO_JOB_JOB_H_
#define SLUICE_TOOLS_DEMO_JOB_JOB_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/demo_job/model.h"

namespace sluice::tools::demo {

// kGraph does what kZerocopy does, from a plan of its dataflow graph.
// kGrpcOverSluice does what kGrpcUnary does, with one changed line at each end.
enum class Mode : uint8_t {
  kZerocopy,
  kOnecopy,
  kGrpcOverSluice,
  kGrpcUnary,
  kGrpcExpert,
  kGrpcStream,
  kGraph
};
inline constexpr std::array<Mode, 7> kModes = {
    Mode::kZerocopy,   Mode::kOnecopy,    Mode::kGrpcOverSluice, Mode::kGrpcUnary,
    Mode::kGrpcExpert, Mode::kGrpcStream, Mode::kGraph};
// Those of a job that does not say: the rest is for who asks for it.
inline constexpr size_t kUsualModes = 5;
std::string_view to_string(Mode mode);
// gRPC without sluice, which sluice is compared with.
constexpr bool is_plain_grpc(Mode mode) {
  return mode == Mode::kGrpcUnary || mode == Mode::kGrpcExpert || mode == Mode::kGrpcStream;
}
constexpr bool is_grpc(Mode mode) { return is_plain_grpc(mode) || mode == Mode::kGrpcOverSluice; }

// On rdma and l2 plain gRPC, which has neither, runs over TCP: at the same address, through the
// same cable.
enum class Route : uint8_t { kShm, kRdma, kL2, kTcp };
inline constexpr std::array<Route, 4> kRoutes = {Route::kShm, Route::kRdma, Route::kL2,
                                                 Route::kTcp};
std::string_view to_string(Route route);

// Where a worker kills itself, for tests.
enum class KillPoint : uint8_t { kBeforePull, kMidPull, kBeforePush, kMidPush, kAfterPush };
inline constexpr int kKillPoints = 5;

// Which byte a test spoils.
enum class Corruption : uint8_t { kNone, kWeights, kGradient };

// Most workers: value_at()'s seeds and the table's columns are made for no more.
inline constexpr int kMostWorkers = 64;
// Most servers: each has a tensor at least.
inline constexpr uint32_t kMostServers = 32;

struct JobOptions {
  int64_t steps = 5;
  int workers = 1;
  Spreading spreading;  // of the model, over servers
  std::string model = "vgg16";
  std::vector<Mode> modes{kModes.begin(), kModes.begin() + kUsualModes};
  std::vector<Route> routes{Route::kShm, Route::kRdma, Route::kTcp};
  std::string json_file;
  std::string
      l2_interfaces;  // "SERVERS[,WORKERS]" of this machine; empty: a cable of the job's own
  int64_t compute_us = 0;
  int64_t timeout_seconds = 120;  // of one step, its verification included
  // Hidden, for tests: counted over the measured steps of each visit, from 1.
  int64_t kill_worker_at_step = 0;
  uint64_t kill_seed = 0;
  Corruption corruption = Corruption::kNone;
};

// One turn of one mode on one path: servers and their workers live for its length.
// Its first steps warm up and are not counted.
struct Visit {
  Mode mode = Mode::kZerocopy;
  Route route = Route::kShm;
  std::string host =
      "127.0.0.1";  // where servers listen, but for shm; on l2 its interface, gRPC's an address
  std::string worker_interface;  // l2: by which workers reach it
  int server_network = -1;       // namespaces to go to; -1: to stay
  int worker_network = -1;
  std::string model;
  Spreading spreading;
  int workers = 1;
  int64_t steps = 1;  // measured ones
  std::chrono::microseconds compute{0};
  std::chrono::seconds timeout{120};
  uint64_t chunk_bytes = 0;  // grpc-stream, grpc-expert; 0: found in the warm-up step
  int64_t kill_step = -1;
  int kill_worker = 0;
  KillPoint kill_point = KillPoint::kBeforePull;
  Corruption corruption = Corruption::kNone;

  // What a child waits for at most. The coordinator, which can say what is missing, gives
  // up first; what is asked for early waits through two of its phases.
  std::chrono::seconds patience() const { return 2 * timeout + std::chrono::seconds(10); }
  // Every page is touched once before anything is measured: zerocopy and graph publish from two
  // sets of weights in turn, the others from one.
  int64_t warm_up_steps() const { return mode == Mode::kZerocopy || mode == Mode::kGraph ? 2 : 1; }
  int64_t last_step() const { return warm_up_steps() + steps - 1; }  // the first is 0
};

struct Sample {
  double step_seconds = 0;  // first weights published .. all gradients averaged in
  double pull_seconds = 0;  // first weights published .. the slowest worker has them all
  double cpu_seconds = 0;   // servers and workers, without averaging and stand-in
  uint64_t copied_bytes = 0;
  uint64_t arena_bytes = 0;  // most that all processes had in their arenas until then; 0: unknown
  uint64_t fetches = 0;      // mode graph: tensors that came from other processes,
  uint64_t views = 0;        // and of them those whose receipt says that nothing was copied
};

struct VisitOutcome {
  std::vector<Sample> samples;  // of the measured steps
  std::string failure;          // empty: it ran to its end
  std::string corruption;       // first byte found wrong; empty: all verified
  uint64_t chunk_bytes = 0;
  int restarts = 0;
};

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_JOB_H_
