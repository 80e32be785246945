// Question: what does one allocate and free cost in a warm arena? The same loop, flags
// and figures as bare/malloc_pair, so that the two can be held against each other.
// Beside the time: what the timed part asked of the system, which should be nothing.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/base/counters.h>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"

namespace bare {
namespace {

constexpr size_t kArenaBytes = size_t{256} << 20;  // four runs of the largest size asked about

void keep_block(void* block) { asm volatile("" : : "r"(block) : "memory"); }

double page_faults() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_minflt + usage.ru_majflt);
}

// The run that the next pair will get must hold what is written to it.
bool run_holds_its_bytes(sluice::Arena& arena, const Options& options) {
  sluice::Result<sluice::Buffer> buffer = arena.allocate(options.size);
  if (!buffer.ok()) die("Arena::allocate");
  fill_pattern(buffer->data(), options.size, 7);
  if (options.corrupt) flip_one_bit(buffer->data(), options.size);
  return count_mismatches(buffer->data(), options.size, 7) == 0;
}

int run(Options options) {
  if (!pin_to_cpu(0)) die("sched_setaffinity");
  alarm(static_cast<unsigned>(options.limit_seconds));
  auto created = sluice::Arena::create({.limit_bytes = std::max(kArenaBytes, options.size * 2)});
  if (!created.ok()) die(created.status().to_string().c_str());
  sluice::Arena& arena = **created;
  if (!arena.allocate(options.size).ok()) die("Arena::allocate");  // warm-up

  const uint64_t batches = (options.iterations + kBatchOfFastRounds - 1) / kBatchOfFastRounds;
  options.iterations = batches * kBatchOfFastRounds;
  // Filled with ones: zeroed memory of the system would be touched in the timed part.
  std::vector<double> took(batches, 1.0);
  double total = 0;
  uint64_t refused = 0;
  const double extents_before =
      static_cast<double>(sluice::read_counter("allocator.extents_added"));
  const double cpu_before = process_cpu_seconds();
  const double faults_before = page_faults();
  for (uint64_t batch = 0; batch < batches; ++batch) {
    const uint64_t start = now_ns();
    for (uint64_t i = 0; i < kBatchOfFastRounds; ++i) {
      sluice::Result<sluice::Buffer> buffer = arena.allocate(options.size);
      refused += buffer.ok() ? 0 : 1;
      burn_ns(options.slow_ns);
      keep_block(&buffer);
    }
    took[batch] = static_cast<double>(now_ns() - start) * 1e-9;
    total += took[batch];
  }
  const double faults = page_faults() - faults_before;
  const double cpu = process_cpu_seconds() - cpu_before;
  const double extents =
      static_cast<double>(sluice::read_counter("allocator.extents_added")) - extents_before;
  if (refused != 0 || !run_holds_its_bytes(arena, options))
    return refuse(options, "a run of the arena");
  Samples seconds;
  for (double batch : took) seconds.add(batch / kBatchOfFastRounds);
  seconds.sort();
  return JsonLine(options)
      .raw("seconds", seconds.json())
      .number("ns_per_pair", total * 1e9 / static_cast<double>(options.iterations))
      .number("page_faults", faults)
      .number("extents_added", extents)
      .number("cpu_seconds", cpu)
      .print_verified();
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "allocate_pair";
  options.iterations = 10'000'000;
  bare::parse_or_exit(options, argc, argv);
  return bare::run(options);
}
