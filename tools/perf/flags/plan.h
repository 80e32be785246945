// What a run of `sluice perf` measures: the tests by name, one size of one test as both
// sides agree on it, and the command line's options. Data only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sluice/api/context.h>

#include "tools/perf/report/statistics.h"

namespace sluice::tools {

enum class Verb : uint8_t { kSend, kWrite, kRead, kAtomic, kExchange, kRpc, kRegister, kCopy };

struct TestKind {
  std::string_view name;
  Verb verb;
  bool latency;  // one operation at a time, there and back; else a window of them
};

inline constexpr std::array<TestKind, 14> kTests = {{
    {"send_lat", Verb::kSend, true},
    {"send_bw", Verb::kSend, false},
    {"write_lat", Verb::kWrite, true},
    {"write_bw", Verb::kWrite, false},
    {"read_lat", Verb::kRead, true},
    {"read_bw", Verb::kRead, false},
    {"atomic_lat", Verb::kAtomic, true},
    {"atomic_bw", Verb::kAtomic, false},
    {"exchange_lat", Verb::kExchange, true},
    {"exchange_bw", Verb::kExchange, false},
    {"rpc_lat", Verb::kRpc, true},
    {"rpc_bw", Verb::kRpc, false},
    {"reg", Verb::kRegister, true},
    {"memcpy", Verb::kCopy, false},
}};

const TestKind* find_test(std::string_view name);
// Whether one process does it alone: there is no server.
bool is_local(const TestKind& test);
// What such a test has a second figure of: "deregister", "past_caches". Empty: nothing.
std::string_view companion_of(const TestKind& test);
// Whether perftest has it, too.
bool is_of_perftest(const TestKind& test);
// Whether its connections may be several, and its operations posted in lists.
bool can_be_striped(const TestKind& test);
// Whether a sample is half of a message there and one back; else it is the whole of an operation.
bool is_ping_pong(const TestKind& test);
// As perftest's: send_bw, write_bw and read_bw.
bool can_be_bidirectional(const TestKind& test);
// Whether its operations can be posted as a program posts them that gives no options.
bool has_default_options(const TestKind& test);
// Whether its messages may have no bytes.
bool may_be_empty(const TestKind& test);

// One size of one test, chosen by the client, followed by both sides.
struct Load {
  const TestKind* test = nullptr;
  uint64_t size_bytes = 0;
  uint64_t reply_bytes = 0;      // rpc tests: of the answer; `size_bytes` are the request's
  uint32_t depth = 1;            // operations outstanding at once
  uint32_t tensors = 1;          // exchange: tensors each side rotates over
  uint32_t qps = 1;              // connections that do this at once, each with a window of `depth`
  bool into = false;             // exchange: fetch into preallocated memory
  bool subscribe = false;        // exchange_bw: take the steps of a subscription
  uint32_t consume_stride = 0;   // exchange: of what was fetched, a byte in so many is read before
                                 // the next one; 0: none
  bool default_options = false;  // send_lat, exchange_lat: each operation has a deadline, and
                                 // somebody is told of its end
  bool verify = true;
  bool checksum = false;       // by a CRC32C in each message, not by comparing its bytes
  bool corrupt = false;        // the sender flips a byte: the check must notice
  bool compare = false;        // atomic tests: compare and swap instead of fetch and add
  bool bidirectional = false;  // bandwidth tests: both sides do it, at the same time
  uint32_t post_list = 1;  // bandwidth tests: so many operations are posted at once, when there is
                           // room for all of them
  bool cold = false;       // buffers are in no cache when a message is sent
  std::optional<uint32_t> source_offset, destination_offset;  // from a page's beginning
  uint64_t seed = 0;
  // The client's alone: what it does between messages, for so long at most.
  uint64_t pause_ns = 0;
  uint64_t pause_seed = 0;

  // A load's window and rotation are cut so that a side needs no more than this, or twice
  // as much in both directions.
  static constexpr uint64_t kWindowBytes = uint64_t{512} << 20;
  // Of consume_stride: each line of a cache, each page.
  static constexpr uint32_t kLineBytes = 64, kPageBytes = 4096;
  // Tensors that exchange_lat rotates over at any size, if no fewer are asked for.
  static constexpr uint32_t kRotation = 8;
  // What an atomic works on.
  static constexpr uint64_t kAtomicBytes = 8;
};

// Fills in depth and tensors within the memory bounds. `tx_depth` 0: the test's default.
Load make_load(const TestKind& test, uint64_t size_bytes, uint32_t tx_depth, uint32_t qps = 1,
               std::optional<uint64_t> reply_bytes = {});
// The answers of an rpc test, as messages of their own.
Load answers_of(const Load& load);
// What one operation moves, in both directions.
uint64_t bytes_of_operation(const Load& load);
// Bytes of a message that are checked as one: write_lat's last ones have the step, which is waited
// for.
uint64_t checked_bytes(const Load& load);
// Whether its messages have the room for a checksum.
bool carries_checksum(const Load& load);
// Payload memory that one side of it allocates.
uint64_t memory_needed(const Load& load);

// Part of a run: iterations that both sides do without a pause.
struct Round {
  enum class Mode : uint8_t {
    kPlain,  // timed, and warm-up
    kCheck,  // every byte written before and compared after each crossing; not timed
    kTouch,  // every page of what arrives is read; not timed
  };
  Mode mode = Mode::kPlain;
  uint64_t first_step = 1;
  uint64_t iterations = 0;

  // The part of connection `i` of `n`: its own steps, its share of the iterations.
  Round share(size_t i, size_t n) const {
    return {.mode = mode,
            .first_step = first_step,
            .iterations = iterations / n + (i < iterations % n ? 1 : 0)};
  }
};

// Connections of one run.
inline constexpr uint32_t kMostQps = 64;

inline constexpr std::string_view kAnyAddress = "0.0.0.0";

// True if HOST has a scheme, tcp://10.0.0.1:7000 or shm:name, which says path and port.
bool is_whole_address(std::string_view host);

// What stdout has.
enum class Format : uint8_t { kText, kPerftest, kJson, kNdjson, kCsv, kOpenMetrics };
inline constexpr std::array<Format, 6> kFormats = {Format::kText, Format::kPerftest,
                                                   Format::kJson, Format::kNdjson,
                                                   Format::kCsv,  Format::kOpenMetrics};
// As --format spells it.
std::string_view to_string(Format format);

// perftest's --output: its table, or one number of each size.
enum class PerftestOnly : uint8_t { kAll, kBandwidth, kMessageRate, kLatency };

// Whether stderr says how far a run is: on a terminal only, or in any case, or never.
enum class ProgressWhen : uint8_t { kAuto, kAlways, kNever };

// A flag that perftest's scripts give and that has no effect here.
struct Unhonoured {
  std::string flag;
  std::string why;
};

// How well the figure of a size is to be known (--confidence).
struct Confidence {
  double level_percent = 95;
  double percent = 0;  // half the interval's width at most
  // Fewer than three say little of how they vary.
  static constexpr unsigned kFewestRuns = 3;
  unsigned most_runs = 30;
};

// A flow of messages beside what is measured (--under-load): what a client asks for.
struct FlowLoad {
  uint64_t size_bytes = 0;
  uint32_t depth = 0;  // of them outstanding at once

  static constexpr uint32_t kDefaultDepth = 16;
  static constexpr uint32_t kMostDepth = 1024;
};

// One size of an earlier run.
struct Reference {
  uint64_t size_bytes = 0;
  double figure = 0;  // the median latency in ns, or bytes per second
  std::string path;   // what carried it
};

struct PerfOptions {
  const TestKind* test = nullptr;
  bool all = false;  // this is one of all tests in turn, or a server of all
  std::string host;  // empty: server, or both ends with `self`
  std::string transport = "auto";
  std::string bind{kAnyAddress};  // l2: an interface
  uint16_t port = 18515;
  std::vector<uint64_t> sizes;
  std::optional<uint64_t> reply_bytes;  // rpc tests; without it, as many as the request has
  std::optional<uint64_t> iterations;
  std::optional<double> seconds;
  std::optional<double> interval;  // seconds between lines of a run by duration
  std::optional<uint64_t> warmup;
  std::optional<Confidence> confidence;
  std::optional<unsigned> most_runs;  // of --runs
  std::optional<FlowLoad> under_load;
  uint32_t tx_depth = 0;
  uint32_t qps = 1;  // of the client; the server follows
  uint32_t post_list = 1;
  Format format = Format::kText;
  bool gigabits = false;          // perftest's text: Gb/s instead of MiB/s
  std::vector<Rank> percentiles;  // beside those that there are always
  bool histogram = false;
  bool system_calls = false;       // counts them, in a round of its own
  std::string json_path;           // beside what stdout has, or "-": kJson
  std::string perftest_json_path;  // of --out_json
  PerftestOnly only = PerftestOnly::kAll;
  std::string plot_path;  // or "-": bars on stdout
  std::string histogram_path;
  std::string title;  // of what is written and drawn
  ProgressWhen progress = ProgressWhen::kAuto;
  std::string baseline_path;
  std::vector<Reference> references;      // of it, one for each size
  std::optional<double> worse_limit;      // per cent
  std::optional<double> least_bandwidth;  // MiB/s, or Gb/s with `gigabits`
  std::optional<double> least_rate;       // million messages a second
  std::vector<Unhonoured> unhonoured;
  bool strict = false;  // those end the run before it begins
  Waiting waiting = Waiting::kAdaptive;
  bool self = false;
  bool forever = false;
  bool into = false;
  bool subscribe = false;
  std::string consume;  // as --consume spells it; empty: nothing
  bool default_options = false;
  std::optional<uint32_t> tensors;  // exchange_lat
  bool verify = true;
  bool checksum = false;
  std::string verify_by;  // as --verify spells it
  bool corrupt = false;
  std::string atomic_type;  // as perftest spells it; empty: the default
  bool compare = false;     // it is compare and swap
  bool bidirectional = false;
  bool cold = false;
  std::optional<uint32_t> source_offset, destination_offset;
  uint64_t perturb_bytes = 0;  // each size is measured with two neighbours
  uint64_t pause_ns = 0;       // the longest pause between messages
  std::optional<uint64_t> seed;
  bool pin = true;
  std::vector<std::string> argv;
  unsigned batch_line = 0;  // of --batch: this run is one of several; 0: of none
  std::string batch_text;
  bool first_in_batch = true;
  unsigned run_number = 1, runs = 1;  // of several in turn
  unsigned runs_after = 0;            // of `all`: that the server is met for again

  bool wants_bins() const { return histogram || !histogram_path.empty(); }
};

std::string_view to_string(Waiting waiting);

// Exit codes of the command.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitMissed = 3;  // a threshold
inline constexpr int kExitCorrupt = 4;
inline constexpr int kExitNothingToRunOn = 77;

}  // namespace sluice::tools
