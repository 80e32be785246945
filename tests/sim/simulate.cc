// Runs schedules by number: one with its trace, or a great many.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/sim/simulation.h"

namespace {

uint64_t number(const char* text) { return std::strtoull(text, nullptr, 0); }

int usage() {
  std::fprintf(stderr,
               "simulate --seed N [--trace]\n"
               "simulate --schedules N [--first-seed S] [--stop-at-first]\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t first = 1, count = 0;
  bool trace = false;
  uint64_t most_failures = 20;
  for (int i = 1; i < argc; ++i) {
    auto is = [&](const char* flag) { return std::strcmp(argv[i], flag) == 0; };
    if (is("--trace")) {
      trace = true;
      continue;
    }
    if (is("--stop-at-first")) {
      most_failures = 1;
      continue;
    }
    if (i + 1 == argc) return usage();
    const char* value = argv[i + 1];
    if (is("--seed"))
      first = number(value), count = 1;
    else if (is("--schedules"))
      count = number(value);
    else if (is("--first-seed"))
      first = number(value);
    else
      return usage();
    ++i;
  }
  if (count == 0) return usage();
  uint64_t digest = 0, failures = 0, operations = 0, turns = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    sluice::sim::Outcome outcome = sluice::sim::run_schedule(seed, trace);
    digest = sluice::sim::mix(digest ^ outcome.hash);
    operations += outcome.operations;
    turns += outcome.turns;
    if (outcome.ok) continue;
    ++failures;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), outcome.why.c_str());
    std::fflush(stdout);
    if (failures == most_failures) break;
  }
  double cpu = static_cast<double>(sluice::process_cpu_time().count()) / 1e9;
  std::printf(
      "%llu schedules from seed %llu: %llu operations, %llu turns, %llu failed, digest %016llx, "
      "%.1f CPU seconds\n",
      static_cast<unsigned long long>(count), static_cast<unsigned long long>(first),
      static_cast<unsigned long long>(operations), static_cast<unsigned long long>(turns),
      static_cast<unsigned long long>(failures), static_cast<unsigned long long>(digest), cpu);
  return failures == 0 ? 0 : 1;
}
