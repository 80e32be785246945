#include "tools/tune/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/base/copy.h>

#include "tools/perf/processes.h"
#include "tools/tune/choose.h"
#include "tools/tune/echo.h"

namespace sluice::tools {
namespace {

using tuning::Measurement;

constexpr size_t kTripsPerTurn = 6, kBulkTripsPerTurn = 2;
const std::vector<uint64_t> kMessageSizes{256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10};
// In one place again and again, and walking through the whole room.
const std::vector<uint64_t> kPlaceSizes{256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20};
const std::vector<uint64_t> kWalkSizes{1 << 20, 8 << 20};
constexpr size_t kCopyRoom = 48 << 20;
// Of a datagram, at MTU 1500: loopback's own frames are so large that batches of them are rare.
constexpr uint16_t kEthernetFrame = 1500 - 28;

// Fewer samples than decide anything came in the time.
constexpr const char* kTooBusy = "not measured: the machine was busy with other things";

// The ways of a path, in this order.
enum : size_t { kEager, kPulled, kEagerAsleep, kPulledAsleep, kWayCount };

std::vector<Way> ways() {
  Tuning eager, pulled;
  eager.shm_eager_bytes = eager.tcp_eager_bytes = 64 << 10;
  pulled.shm_eager_bytes = pulled.tcp_eager_bytes = 64;
  // Adaptive: a peer that is always awake is found by polling, and on a busy machine nobody burns what the other end needs.
  return {{.tuning = eager, .waiting = Waiting::kAdaptive},
          {.tuning = pulled, .waiting = Waiting::kAdaptive},
          {.tuning = eager, .waiting = Waiting::kSleep},
          {.tuning = pulled, .waiting = Waiting::kSleep}};
}

struct Messages {
  Measurement eager_bytes;
  Measurement spin_ns;
};

Measurement spin_from(const std::vector<double>& awake, const std::vector<double>& asleep) {
  if (typical(awake) <= 0 || typical(asleep) <= 0) return {Tuning().spin_ns, kTooBusy};
  double wake_ns = (typical(asleep) - typical(awake)) / 2;  // of one way
  if (wake_ns <= 0) return {Tuning().spin_ns, kTooBusy};    // both slept: whoever polls was given no processor to do it on
  return {spin_budget_ns(wake_ns), fmt::format("a sleeper answers {:.1f} us later than one that polls", wake_ns / 1000)};
}

// Every size by every way in turn, until the time is up: a machine that slows down for a while slows all of them.
Result<Messages> probe_messages(EchoPath path, uint64_t usual) {
  SLUICE_TRY(std::unique_ptr<Echo> echo, Echo::start(path, ways()));
  std::vector<std::array<std::vector<double>, kWayCount>> times(kMessageSizes.size());
  Instant end = after(sluice::now(), kProbeBudget);
  auto in_time = [&] { return sluice::now() < end; };
  while (in_time()) {
    for (size_t way = 0; way < kWayCount; ++way) {
      for (size_t i = 0; i < kMessageSizes.size() && in_time(); ++i) {
        SLUICE_RETURN_IF_ERROR(echo->measure(way, kMessageSizes[i], kTripsPerTurn, times[i][way]));
      }
    }
  }
  // Pulling tells the sender, which wakes one that sleeps: each size counts twice, and the worse of the two decides.
  std::vector<SizeTimes> awake, asleep;
  for (size_t i = 0; i < kMessageSizes.size(); ++i) {
    auto of = [&](size_t way) { return typical(times[i][way]); };
    awake.push_back({.bytes = kMessageSizes[i], .below_ns = of(kEager), .above_ns = of(kPulled)});
    asleep.push_back({.bytes = kMessageSizes[i], .below_ns = of(kEagerAsleep), .above_ns = of(kPulledAsleep)});
  }
  std::string told_awake = ratios_text(awake), told_asleep = ratios_text(asleep);
  Messages found{.eager_bytes = {usual, kTooBusy}, .spin_ns = spin_from(times[0][kEager], times[0][kEagerAsleep])};
  if (told_awake.empty() || told_asleep.empty()) return found;
  std::vector<SizeTimes> both = awake;
  both.insert(both.end(), asleep.begin(), asleep.end());
  Choice choice = choose_threshold(both, kMessageSizes, true, usual);
  found.eager_bytes = {choice.bytes, "round trip, eager against pulled: awake " + told_awake + "; asleep " + told_asleep};
  return found;
}

// Frames of 1 MiB messages, to the kernel in so many at a time.
Result<Measurement> probe_batches(uint64_t usual) {
  const std::vector<uint64_t> batches{16, 32, 64, kMostBatchFrames};
  std::vector<Way> ways;
  for (uint64_t batch : batches) {
    Tuning tuning;
    tuning.l2_batch_frames = batch;
    tuning.l2_frame_bytes = kEthernetFrame;
    ways.push_back({.tuning = tuning, .waiting = Waiting::kAdaptive});
  }
  Result<std::unique_ptr<Echo>> echo = Echo::start(EchoPath::kUdp, ways);
  if (!echo.ok()) return Measurement{usual, "not measured: " + echo.status().to_string()};
  std::vector<std::vector<double>> times(batches.size());
  Instant end = after(sluice::now(), kProbeBudget);
  while (sluice::now() < end) {
    for (size_t way = 0; way < ways.size() && sluice::now() < end; ++way) {
      SLUICE_RETURN_IF_ERROR((*echo)->measure(way, most_bytes(EchoPath::kUdp), kBulkTripsPerTurn, times[way]));
    }
  }
  std::vector<ValueTime> found;
  for (size_t way = 0; way < batches.size(); ++way) found.push_back({.value = batches[way], .ns = typical(times[way])});
  std::string costs = costs_text(found);
  if (costs.empty()) return Measurement{usual, kTooBusy};
  return Measurement{choose_value(found, usual), "1 MiB there and back in UDP, by the fastest: " + costs};
}

// Few samples: whatever else ran made them longer, nothing makes them shorter. 0, which decides nothing, of fewer than three.
double least(const std::vector<double>& times) { return times.size() < 3 ? 0 : *std::min_element(times.begin(), times.end()); }

uint64_t sum_of_lines(const std::byte* data, size_t length) {
  uint64_t sum = 0;
  for (size_t i = 0; i < length; i += 64) sum += static_cast<uint64_t>(data[i]);
  return sum;
}

// A copy whose result is read, as its receiver does: the destination is where it was the last time, or has long left the caches.
class Copies {
 public:
  Status prepare() {
    SLUICE_TRY(arena_, Arena::create({.limit_bytes = 256u << 20, .first_extent_bytes = 2 * kCopyRoom + (2u << 20)}));
    SLUICE_TRY(from_, arena_->allocate(kCopyRoom));
    SLUICE_TRY(to_, arena_->allocate(kCopyRoom));
    return Status();
  }
  double time_in_place(size_t bytes, bool past_caches) { return time(0, bytes, past_caches); }
  double time_walking(size_t bytes, bool past_caches) {
    if (next_ + bytes > kCopyRoom) next_ = 0;
    next_ += bytes;
    return time(next_ - bytes, bytes, past_caches);
  }
  uint64_t seen() const { return seen_; }

 private:
  double time(size_t at, size_t bytes, bool past_caches) {
    Instant start = sluice::now();
    copy_bytes(to_.data() + at, from_.data() + at, bytes, past_caches);
    seen_ += sum_of_lines(to_.data() + at, bytes);
    return static_cast<double>((sluice::now() - start).count());
  }

  std::unique_ptr<Arena> arena_;
  Buffer from_, to_;
  size_t next_ = 0;
  uint64_t seen_ = 0;  // so that nobody can leave the reading out
};

// Times of a size, through the caches and past them.
using BothWays = std::array<std::vector<double>, 2>;

void measure_copies(Copies& copies, std::vector<BothWays>& in_place, std::vector<BothWays>& walking) {
  Instant end = after(sluice::now(), kProbeBudget);
  while (sluice::now() < end) {
    for (size_t i = 0; i < kWalkSizes.size() && sluice::now() < end; ++i) {
      for (bool past : {false, true}) walking[i][past].push_back(copies.time_walking(kWalkSizes[i], past));
    }
    for (size_t i = 0; i < kPlaceSizes.size() && sluice::now() < end; ++i) {
      for (bool past : {false, true}) {
        (void)copies.time_in_place(kPlaceSizes[i], past);
        in_place[i][past].push_back(copies.time_in_place(kPlaceSizes[i], past));
      }
    }
  }
}

std::vector<SizeTimes> least_of(const std::vector<uint64_t>& sizes, const std::vector<BothWays>& times) {
  std::vector<SizeTimes> out;
  for (size_t i = 0; i < sizes.size(); ++i) out.push_back({.bytes = sizes[i], .below_ns = least(times[i][false]), .above_ns = least(times[i][true])});
  return out;
}

Result<Measurement> probe_copies() {
  Copies copies;
  if (Status status = copies.prepare(); !status.ok()) return Measurement{kNeverBytes, "not measured: no memory for it"};
  std::vector<BothWays> in_place(kPlaceSizes.size()), walking(kWalkSizes.size());
  measure_copies(copies, in_place, walking);
  std::vector<SizeTimes> sizes = least_of(kPlaceSizes, in_place), elsewhere = least_of(kWalkSizes, walking);
  std::string told = ratios_text(sizes), told_elsewhere = ratios_text(elsewhere);
  bool whole = std::none_of(sizes.begin(), sizes.end(), [](const SizeTimes& size) { return size.below_ns <= 0 || size.above_ns <= 0; });
  if (!whole || told_elsewhere.empty()) return Measurement{kNeverBytes, kTooBusy};
  // Walking, a destination was last written longer ago than any threshold but `never`.
  for (const SizeTimes& size : elsewhere) sizes.push_back({.bytes = kNeverBytes - 1, .below_ns = size.below_ns, .above_ns = size.above_ns});
  std::vector<uint64_t> candidates = kPlaceSizes;
  candidates.insert(candidates.end(), {2 * kPlaceSizes.back(), kNeverBytes});
  return Measurement{choose_threshold(sizes, candidates, false, kNeverBytes).bytes,
                     "copied and read, through the caches against past them: in place " + told + "; elsewhere " + told_elsewhere};
}

}  // namespace

Result<std::array<Measurement, tuning::kKnobCount>> probe() {
  Tuning usual;
  Messages shm, tcp;
  Measurement batches;
  if (usable_cpus() < 2) {
    std::string why = "not measured: this process may use one processor only";
    shm = {{usual.shm_eager_bytes, why}, {usual.spin_ns, why}};
    tcp = {{usual.tcp_eager_bytes, why}, {}};
    batches = {usual.l2_batch_frames, why};
  } else {
    SLUICE_TRY(shm, probe_messages(EchoPath::kShm, usual.shm_eager_bytes));
    SLUICE_TRY(tcp, probe_messages(EchoPath::kTcp, usual.tcp_eager_bytes));
    SLUICE_TRY(batches, probe_batches(usual.l2_batch_frames));
  }
  SLUICE_TRY(Measurement copies, probe_copies());
  // In the order of knobs().
  return std::array<Measurement, tuning::kKnobCount>{shm.eager_bytes, tcp.eager_bytes, shm.spin_ns, copies, batches};
}

}  // namespace sluice::tools
