#include "tools/tune/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/base/copy.h>

#include "tools/perf/run/processes.h"
#include "tools/tune/choose.h"
#include "tools/tune/echo.h"

namespace sluice::tools {
namespace {

using tuning::Measurement;

constexpr size_t kTripsPerTurn = 6, kBulkTripsPerTurn = 2;
const std::vector<uint64_t> kMessageSizes{256,     512,      1 << 10,  2 << 10, 4 << 10,
                                          8 << 10, 16 << 10, 32 << 10, 64 << 10};
// In one place again and again; and walking through the whole room, so many bytes in pieces of
// these sizes.
const std::vector<uint64_t> kPlaceSizes{256 << 10, 512 << 10, 1 << 20, 2 << 20,
                                        4 << 20,   8 << 20,   16 << 20};
const std::vector<uint64_t> kWalkSizes{1 << 20, 8 << 20};
constexpr size_t kCopyRoom = 48 << 20, kWalkedAtOnce = 8 << 20;
// A datagram at MTU 1500: loopback's own frames are so large that batches of them are rare.
constexpr uint16_t kEthernetFrame = 1500 - 28;

// Fewer samples than decide anything came in the time.
constexpr const char* kTooBusy = "not measured: the machine was busy with other things";

// The ways of a path, in this order.
enum : size_t { kEager, kPulled, kEagerAsleep, kPulledAsleep, kWayCount };

std::vector<Way> ways() {
  Tuning eager, pulled;
  eager.shm_eager_bytes = eager.tcp_eager_bytes = 64 << 10;
  pulled.shm_eager_bytes = pulled.shm_eager_sleeping_bytes = pulled.tcp_eager_bytes = 64;
  // Adaptive: a peer that is always awake is found by polling, and on a busy machine nobody burns
  // what the other end needs.
  return {{.tuning = eager, .waiting = Waiting::kAdaptive},
          {.tuning = pulled, .waiting = Waiting::kAdaptive},
          {.tuning = eager, .waiting = Waiting::kSleep},
          {.tuning = pulled, .waiting = Waiting::kSleep}};
}

// Times of both ways, eager below and pulled above, with ends that poll and with ends that sleep.
struct Messages {
  std::vector<SizeTimes> awake, asleep;
  Measurement spin_ns;
};

Measurement spin_from(const std::vector<double>& awake, const std::vector<double>& asleep) {
  if (typical(awake) <= 0 || typical(asleep) <= 0) return {Tuning().spin_ns, kTooBusy};
  // Else both slept: the polling end got no processor.
  if (typical(asleep) < 2 * typical(awake)) return {Tuning().spin_ns, kTooBusy};
  double wake_ns = (typical(asleep) - typical(awake)) / 2;  // of one way
  return {spin_budget_ns(wake_ns),
          fmt::format("a sleeper answers {:.1f} us later than one that polls", wake_ns / 1000)};
}

// Every size by every way in turn, until the time is up: a machine that slows down for a while
// slows all of them.
Result<Messages> probe_messages(EchoPath path) {
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
  Messages found;
  for (size_t i = 0; i < kMessageSizes.size(); ++i) {
    auto of = [&](size_t way) { return typical(times[i][way]); };
    found.awake.push_back(
        {.bytes = kMessageSizes[i], .below_ns = of(kEager), .above_ns = of(kPulled)});
    found.asleep.push_back(
        {.bytes = kMessageSizes[i], .below_ns = of(kEagerAsleep), .above_ns = of(kPulledAsleep)});
  }
  found.spin_ns = spin_from(times[0][kEager], times[0][kEagerAsleep]);
  return found;
}

struct EagerBytes {
  Measurement awake, asleep;
};

// One for each way of waiting. Pulling tells the sender, which wakes one that sleeps.
EagerBytes choose_two(const Messages& messages, const Tuning& usual) {
  std::string awake = ratios_text(messages.awake), asleep = ratios_text(messages.asleep);
  bool too_busy = awake.empty() || asleep.empty() || messages.spin_ns.measured == kTooBusy;
  if (too_busy)
    return {{usual.shm_eager_bytes, kTooBusy}, {usual.shm_eager_sleeping_bytes, kTooBusy}};
  uint64_t polled =
      choose_threshold(messages.awake, kMessageSizes, true, usual.shm_eager_bytes).bytes;
  uint64_t slept =
      choose_threshold(messages.asleep, kMessageSizes, true, usual.shm_eager_sleeping_bytes).bytes;
  return {
      {polled, "round trip, both ends polling, eager against pulled: " + awake},
      {std::max(polled, slept), "round trip, both ends asleep, eager against pulled: " + asleep}};
}

// One for both: each size counts twice, and the worse of the two decides.
Measurement choose_one(const Messages& messages, uint64_t usual) {
  std::string awake = ratios_text(messages.awake), asleep = ratios_text(messages.asleep);
  if (awake.empty() || asleep.empty()) return {usual, kTooBusy};
  std::vector<SizeTimes> both = messages.awake;
  both.insert(both.end(), messages.asleep.begin(), messages.asleep.end());
  return {choose_threshold(both, kMessageSizes, true, usual).bytes,
          "round trip, eager against pulled: awake " + awake + "; asleep " + asleep};
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
      SLUICE_RETURN_IF_ERROR(
          (*echo)->measure(way, most_bytes(EchoPath::kUdp), kBulkTripsPerTurn, times[way]));
    }
  }
  std::vector<ValueTime> found;
  for (size_t way = 0; way < batches.size(); ++way)
    found.push_back({.value = batches[way], .ns = typical(times[way])});
  std::string costs = costs_text(found);
  if (costs.empty()) return Measurement{usual, kTooBusy};
  return Measurement{choose_value(found, usual),
                     "1 MiB there and back in UDP, by the fastest: " + costs};
}

uint64_t sum_of_lines(const std::byte* data, size_t length) {
  uint64_t sum = 0;
  for (size_t i = 0; i < length; i += 64) sum += static_cast<uint64_t>(data[i]);
  return sum;
}

// A copy whose result is read, as its receiver does: the destination is where it was the last time,
// or has long left the caches. What comes in many pieces is read when all are there, as a model is.
class Copies {
 public:
  Status prepare() {
    SLUICE_TRY(arena_, Arena::create({.limit_bytes = 256u << 20,
                                      .first_extent_bytes = 2 * kCopyRoom + (2u << 20)}));
    SLUICE_TRY(from_, arena_->allocate(kCopyRoom));
    SLUICE_TRY(to_, arena_->allocate(kCopyRoom));
    return Status();
  }
  double time_in_place(size_t bytes, bool past_caches) {
    return time(0, bytes, bytes, past_caches);
  }
  double time_walking(size_t piece, bool past_caches) {
    next_ = (next_ + kWalkedAtOnce) % kCopyRoom;
    return time(next_, kWalkedAtOnce, piece, past_caches);
  }
  uint64_t seen() const { return seen_; }

 private:
  // Requires: whole pieces.
  double time(size_t at, size_t bytes, size_t piece, bool past_caches) {
    Instant start = sluice::now();
    for (size_t done = 0; done < bytes; done += piece)
      copy_bytes(to_.data() + at + done, from_.data() + at + done, piece, past_caches);
    seen_ += sum_of_lines(to_.data() + at, bytes);
    return static_cast<double>((sluice::now() - start).count());
  }

  std::unique_ptr<Arena> arena_;
  Buffer from_, to_;
  size_t next_ = 0;
  uint64_t seen_ = 0;  // so that nobody can leave the reading out
};

// Every size in turn, until the time is up; of a pair now one and now the other comes first.
void measure_copies(Copies& copies, std::vector<PairedTimes>& in_place,
                    std::vector<PairedTimes>& elsewhere) {
  Instant end = after(sluice::now(), kProbeBudget);
  bool past_first = false;
  auto add_pair = [&](PairedTimes& size, auto time) {
    past_first = !past_first;
    double first = time(past_first), second = time(!past_first);
    size.ratios.push_back(past_first ? second / first : first / second);
  };
  while (sluice::now() < end) {
    for (size_t i = 0; i < elsewhere.size() && sluice::now() < end; ++i) {
      add_pair(elsewhere[i],
               [&](bool past) { return copies.time_walking(elsewhere[i].bytes, past); });
    }
    for (size_t i = 0; i < in_place.size() && sluice::now() < end; ++i) {
      // As many pairs of a small size as take no longer than one of a large size.
      for (uint64_t pairs = std::max<uint64_t>(1, kPlaceSizes[2] / in_place[i].bytes); pairs > 0;
           --pairs) {
        add_pair(in_place[i], [&](bool past) {
          (void)copies.time_in_place(in_place[i].bytes, past);
          return copies.time_in_place(in_place[i].bytes, past);
        });
      }
    }
  }
}

Result<Measurement> probe_copies(uint64_t usual) {
  Copies copies;
  if (Status status = copies.prepare(); !status.ok())
    return Measurement{usual, "not measured: no memory for it"};
  std::vector<PairedTimes> in_place, elsewhere;
  for (uint64_t bytes : kPlaceSizes) in_place.push_back({.bytes = bytes, .ratios = {}});
  for (uint64_t bytes : kWalkSizes) elsewhere.push_back({.bytes = bytes, .ratios = {}});
  measure_copies(copies, in_place, elsewhere);
  bool few = std::any_of(in_place.begin(), in_place.end(),
                         [](const PairedTimes& size) { return size.ratios.size() < kFewestPairs; });
  if (few) return Measurement{usual, kTooBusy};
  return Measurement{choose_reach(in_place, elsewhere, usual, kNeverBytes),
                     "copied and read, through the caches against past them: in place " +
                         ratios_text(in_place) + "; elsewhere " + ratios_text(elsewhere)};
}

}  // namespace

Result<std::array<Measurement, tuning::kKnobCount>> probe() {
  Tuning usual;
  EagerBytes shm;
  Measurement tcp, spin, batches;
  if (usable_cpus() < 2) {
    std::string why = "not measured: this process may use one processor only";
    shm = {{usual.shm_eager_bytes, why}, {usual.shm_eager_sleeping_bytes, why}};
    tcp = {usual.tcp_eager_bytes, why};
    spin = {usual.spin_ns, why};
    batches = {usual.l2_batch_frames, why};
  } else {
    SLUICE_TRY(Messages by_shm, probe_messages(EchoPath::kShm));
    SLUICE_TRY(Messages by_tcp, probe_messages(EchoPath::kTcp));
    shm = choose_two(by_shm, usual);
    spin = by_shm.spin_ns;
    tcp = choose_one(by_tcp, usual.tcp_eager_bytes);
    SLUICE_TRY(batches, probe_batches(usual.l2_batch_frames));
  }
  SLUICE_TRY(Measurement copies, probe_copies(usual.stream_copy_bytes));
  // In the order of knobs().
  return std::array<Measurement, tuning::kKnobCount>{shm.awake, shm.asleep, tcp,
                                                     spin,      copies,     batches};
}

}  // namespace sluice::tools
