// Question: how fast can one process tell another that something happened, when
// both spin and nothing but a cache line travels?
//
// --mode flag: one sequence number in one shared cache line, both directions.
// --mode payload: `--size` bytes beside the flag, written before it and copied
// out after it, each direction in cache lines of its own.
// Figures are half round trips, averaged over batches of 128. Whether a pause
// in the spin loop helps depends on the CPU, so every run does all iterations
// both ways and reports the faster one (`spin`): a yardstick must not be slow.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <new>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"

namespace bare {
namespace {

constexpr size_t kCacheLine = 64;
// Set in one answer by --corrupt; no sequence number gets there.
constexpr uint64_t kWrong = uint64_t{1} << 63;

struct Direction {
  alignas(kCacheLine) std::atomic<uint64_t> sequence{0};
  // 4 KiB is the largest payload accepted: beyond it the copy is the question (shm_ring_copy).
  alignas(kCacheLine) unsigned char payload[4096] = {};
};

struct Lines {
  alignas(kCacheLine) std::atomic<uint64_t> flag{0};  // --mode flag: odd is there, even is back
  Direction there, back;
};

template <bool kPause>
void relax() {
#if defined(__x86_64__)
  if constexpr (kPause) __builtin_ia32_pause();
#elif defined(__aarch64__)
  if constexpr (kPause) asm volatile("yield");
#endif
}

template <bool kPause>
void wait_for(const std::atomic<uint64_t>& word, uint64_t value) {
  while (word.load(std::memory_order_acquire) != value) relax<kPause>();
}

template <bool kPause>
void echo(const Options& options, Lines& lines, uint64_t first, uint64_t rounds) {
  const uint64_t slow_ns = options.slow_ns;  // in registers: nothing between load and store
  const uint64_t size = options.size;
  const uint64_t wrong_at = options.corrupt ? first + rounds / 2 : ~uint64_t{0};
  const bool payload = options.mode == "payload";
  for (uint64_t i = first; i < first + rounds; ++i) {
    if (payload) {
      wait_for<kPause>(lines.there.sequence, i + 1);
      std::memcpy(lines.back.payload, lines.there.payload, size);
      burn_ns(slow_ns);
      if (i == wrong_at) [[unlikely]]
        flip_one_bit(lines.back.payload, size);
      lines.back.sequence.store(i + 1, std::memory_order_release);
    } else {
      const uint64_t answer = (2 * i + 2) | (i == wrong_at ? kWrong : 0);
      wait_for<kPause>(lines.flag, 2 * i + 1);
      burn_ns(slow_ns);
      lines.flag.store(answer, std::memory_order_release);
    }
  }
}

// The batches return the number of wrong answers and set the time they took.
template <bool kPause>
uint64_t flag_batch(Lines& lines, uint64_t first, double& seconds) {
  uint64_t wrong = 0;
  const uint64_t start = now_ns();
  for (uint64_t i = first; i < first + kBatchOfFastRounds; ++i) {
    lines.flag.store(2 * i + 1, std::memory_order_release);
    uint64_t answer;
    while ((answer = lines.flag.load(std::memory_order_acquire)) == 2 * i + 1) relax<kPause>();
    wrong += answer != 2 * i + 2 ? 1 : 0;
  }
  seconds = static_cast<double>(now_ns() - start) * 1e-9;
  return wrong;
}

// Answers are kept in `log` (cache resident) and checked after the clock stops.
template <bool kPause>
uint64_t payload_batch(Lines& lines, size_t size, unsigned char* log, uint64_t first,
                       double& seconds) {
  const uint64_t start = now_ns();
  for (uint64_t i = 0; i < kBatchOfFastRounds; ++i) {
    const uint64_t sequence = first + i + 1;
    fill_pattern(lines.there.payload, size, static_cast<uint32_t>(sequence));
    lines.there.sequence.store(sequence, std::memory_order_release);
    wait_for<kPause>(lines.back.sequence, sequence);
    std::memcpy(log + i * size, lines.back.payload, size);
  }
  seconds = static_cast<double>(now_ns() - start) * 1e-9;
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < kBatchOfFastRounds; ++i)
    wrong += count_mismatches(log + i * size, size, static_cast<uint32_t>(first + i + 1));
  return wrong;
}

struct Pass {
  Samples one_way_ns;
  double total_seconds = 0;
  double cpu_seconds = 0;
  uint64_t wrong = 0;
};

template <bool kPause>
Pass measure_pass(const Options& options, Lines& lines, unsigned char* log, uint64_t first) {
  Pass pass;
  const double cpu_before = process_cpu_seconds();
  for (uint64_t at = first; at < first + options.iterations; at += kBatchOfFastRounds) {
    double seconds = 0;
    pass.wrong += options.mode == "flag"
                      ? flag_batch<kPause>(lines, at, seconds)
                      : payload_batch<kPause>(lines, options.size, log, at, seconds);
    pass.one_way_ns.add(seconds * 1e9 / (2.0 * kBatchOfFastRounds));
    pass.total_seconds += seconds;
  }
  pass.cpu_seconds = 2 * (process_cpu_seconds() - cpu_before);  // the peer spins exactly as long
  pass.one_way_ns.sort();
  return pass;
}

int measure(const Options& options, Lines& lines) {
  auto* log = static_cast<unsigned char*>(map_private(kBatchOfFastRounds * options.size));
  const Pass plain = measure_pass<false>(options, lines, log, 0);
  const Pass paused = measure_pass<true>(options, lines, log, options.iterations);
  const uint64_t wrong = plain.wrong + paused.wrong;
  if (wrong != 0) return refuse(options, std::to_string(wrong) + " wrong answers");
  const bool pause_wins = paused.one_way_ns.p50() < plain.one_way_ns.p50();
  const Pass& best = pause_wins ? paused : plain;
  const double bytes = 2.0 * static_cast<double>(options.iterations * options.size);
  return JsonLine(options)
      .text("spin", pause_wins ? "pause" : "plain")
      .raw("one_way_ns", best.one_way_ns.json())
      .number("bytes_per_second", bytes / best.total_seconds)
      .number("cpu_seconds", best.cpu_seconds)
      .print_verified();
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "flag_pingpong";
  options.modes = {"flag", "payload"};
  options.mode = "flag";
  options.iterations = 200'000;
  bare::parse_or_exit(options, argc, argv);
  if (options.size > sizeof(bare::Direction::payload)) {
    fprintf(stderr, "flag_pingpong: --size is at most 4096\n");
    return bare::kExitUsage;
  }
  const uint64_t batches =
      (options.iterations + bare::kBatchOfFastRounds - 1) / bare::kBatchOfFastRounds;
  options.iterations = batches * bare::kBatchOfFastRounds;
  auto* lines = new (bare::map_shared(sizeof(bare::Lines))) bare::Lines;
  return bare::run_pair(
      options,
      [&](bare::PeerReport&) {
        bare::echo<false>(options, *lines, 0, options.iterations);
        bare::echo<true>(options, *lines, options.iterations, options.iterations);
        return 0;
      },
      [&](bare::PeerReport&) { return bare::measure(options, *lines); });
}
