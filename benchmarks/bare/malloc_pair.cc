// Question: what does one malloc and free of 64 B cost when the thread's cache
// serves both? Figures are seconds per pair, averaged over batches of 128.
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"

namespace bare {
namespace {

// Keeps the pair: the compiler may otherwise drop a malloc whose block is unused.
void keep_block(void* block) { asm volatile("" : : "r"(block) : "memory"); }

// The block that the next pair will get must hold what is written to it.
bool block_holds_its_bytes(const Options& options) {
  void* block = std::malloc(options.size);
  if (block == nullptr) die("malloc");
  fill_pattern(block, options.size, 7);
  if (options.corrupt) flip_one_bit(block, options.size);
  keep_block(block);
  const bool holds = count_mismatches(block, options.size, 7) == 0;
  std::free(block);
  return holds;
}

int run(Options options) {
  if (!pin_to_cpu(0)) die("sched_setaffinity");
  alarm(static_cast<unsigned>(options.limit_seconds));
  const uint64_t batches = (options.iterations + kBatchOfFastRounds - 1) / kBatchOfFastRounds;
  options.iterations = batches * kBatchOfFastRounds;
  Samples seconds;
  double total = 0;
  uint64_t refused = 0;
  const double cpu_before = process_cpu_seconds();
  for (uint64_t batch = 0; batch < batches; ++batch) {
    const uint64_t start = now_ns();
    for (uint64_t i = 0; i < kBatchOfFastRounds; ++i) {
      void* block = std::malloc(options.size);
      refused += block == nullptr ? 1 : 0;
      burn_ns(options.slow_ns);
      keep_block(block);
      std::free(block);
    }
    const double took = static_cast<double>(now_ns() - start) * 1e-9;
    seconds.add(took / kBatchOfFastRounds);
    total += took;
  }
  const double cpu = process_cpu_seconds() - cpu_before;
  if (refused != 0 || !block_holds_its_bytes(options)) return refuse(options, "a block of malloc");
  seconds.sort();
  return JsonLine(options)
      .raw("seconds", seconds.json())
      .number("ns_per_pair", total * 1e9 / static_cast<double>(options.iterations))
      .number("cpu_seconds", cpu)
      .print_verified();
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "malloc_pair";
  options.iterations = 10'000'000;
  bare::parse_or_exit(options, argc, argv);
  return bare::run(options);
}
