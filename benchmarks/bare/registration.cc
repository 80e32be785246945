// Questions: what does it cost to make memory known to a device, and to take that back; and what
// does a cache of such registrations save, by how often it has what is asked for?
//
// --mode mlock, io_uring, verbs: registrar.h.
// Without --hit-percent an iteration registers and deregisters --size bytes, and nothing is moved.
// With it an iteration moves one of 16 buffers of --size bytes by a copy, the fastest transfer
// there is. In so many cases of a hundred its registration is there; else another is let go for it
// and it is registered. Both are of this same buffer, so that all shares of hits touch the same
// memory in the same order and differ in nothing but what registering costs.
#include <array>
#include <cstring>
#include <memory>
#include <string>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"
#include "benchmarks/bare/registrar.h"

namespace bare {
namespace {

constexpr size_t kRegistered = 16;

int report(const Options& options, Samples& seconds, double total, double cpu,
           uint64_t registrations) {
  seconds.sort();
  const double bytes = static_cast<double>(options.iterations * options.size);
  JsonLine line(options);
  if (options.hit_percent != kNoHitPercent)
    line.number("hit_percent", static_cast<double>(options.hit_percent));
  return line.number("registrations", static_cast<double>(registrations))
      .raw("seconds", seconds.json())
      .number("bytes_per_second", bytes / total)
      .number("cpu_seconds", cpu)
      .print_verified();
}

int register_and_let_go(const Options& options, Registrar& registrar) {
  void* memory = map_private(options.size);
  fill_pattern(memory, options.size, 3);
  if (!holds_pages(registrar, memory, options.size))
    return refuse(options, "nothing is pinned by it");
  Samples seconds;
  double total = 0;
  const double cpu_before = process_cpu_seconds();
  for (uint64_t i = 0; i < options.iterations; ++i) {
    const uint64_t start = now_ns();
    registrar.take(0, memory, options.size);
    burn_ns(options.slow_ns);
    registrar.let_go(0);
    const double took = static_cast<double>(now_ns() - start) * 1e-9;
    seconds.add(took);
    total += took;
  }
  const double cpu = process_cpu_seconds() - cpu_before;
  if (options.corrupt) flip_one_bit(memory, options.size);
  if (count_mismatches(memory, options.size, 3) != 0)
    return refuse(options, "the memory that was registered");
  return report(options, seconds, total, cpu, options.iterations);
}

int move_by_cache(const Options& options, Registrar& registrar) {
  std::array<void*, kRegistered> buffers;
  for (size_t i = 0; i < kRegistered; ++i) {
    buffers[i] = map_private(options.size);
    fill_pattern(buffers[i], options.size, static_cast<uint32_t>(i));
  }
  void* destination = map_private(options.size);
  if (!holds_pages(registrar, buffers[0], options.size))
    return refuse(options, "nothing is pinned by it");
  for (size_t i = 0; i < kRegistered; ++i) registrar.take(i, buffers[i], options.size);
  Samples seconds;
  uint64_t random = 1, misses = 0, wrong = 0;
  double total = 0, cpu = 0;
  for (uint64_t i = 0; i < options.iterations; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const size_t buffer = (random >> 60) % kRegistered;
    const bool hits = (random >> 33) % 100 < options.hit_percent;
    const double cpu_before = process_cpu_seconds();
    const uint64_t start = now_ns();
    if (!hits) {
      registrar.let_go(buffer);
      registrar.take(buffer, buffers[buffer], options.size);
      ++misses;
    }
    std::memcpy(destination, buffers[buffer], options.size);
    burn_ns(options.slow_ns);
    const double took = static_cast<double>(now_ns() - start) * 1e-9;
    cpu += process_cpu_seconds() - cpu_before;
    if (options.corrupt && i == options.iterations / 2) flip_one_bit(destination, options.size);
    wrong += count_mismatches(destination, options.size, static_cast<uint32_t>(buffer));
    seconds.add(took);
    total += took;
  }
  for (size_t i = 0; i < kRegistered; ++i) registrar.let_go(i);
  if (wrong != 0) return refuse(options, std::to_string(wrong) + " wrong words");
  return report(options, seconds, total, cpu, misses);
}

int run(const Options& options) {
  if (!pin_to_cpu(0)) die("sched_setaffinity");
  alarm(static_cast<unsigned>(options.limit_seconds));
  const std::unique_ptr<Registrar> registrar = registrar_of(options.mode, kRegistered);
  return options.hit_percent == kNoHitPercent ? register_and_let_go(options, *registrar)
                                              : move_by_cache(options, *registrar);
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "registration";
  options.modes = {"mlock", "io_uring", "verbs"};
  options.mode = "io_uring";
  options.caches = true;
  options.size = 1u << 20;
  options.iterations = 100;
  bare::parse_or_exit(options, argc, argv);
  return bare::run(options);
}
