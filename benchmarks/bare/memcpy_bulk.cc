// Question: how fast is one memcpy of a large block between two touched
// buffers, with anonymous memory and with memfd memory (what an arena is)?
//
// The source was just written by the same processor and its end is still in the cache,
// but for mode memfd_cold: there eight pairs take turns and were written before the
// clock started, as a tensor is that another process made.
//
// Mode streaming: anonymous memory, written by stores that go past the caches;
// memfd_cold_streaming: as memfd_cold, and by such stores.
//
// Both are advised MADV_HUGEPAGE; `huge_kib` says how much of the two buffers
// the kernel did back with huge pages.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"
#include "benchmarks/bare/streaming_copy.h"

namespace bare {
namespace {

void* map_memfd(size_t bytes) {
  const int fd = memfd_create("memcpy_bulk", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) die("memfd_create");
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) die("mmap");
  close(fd);
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 0, bytes);
  return memory;
}

// Huge pages of all of this process's mappings: the two buffers are the only large ones.
double huge_kib() {
  FILE* file = std::fopen("/proc/self/smaps_rollup", "r");
  if (file == nullptr) die("/proc/self/smaps_rollup");
  uint64_t sum = 0, kib = 0;
  char line[256];
  while (std::fgets(line, sizeof line, file) != nullptr)
    if (std::sscanf(line, "AnonHugePages: %" SCNu64, &kib) == 1 ||
        std::sscanf(line, "ShmemPmdMapped: %" SCNu64, &kib) == 1)
      sum += kib;
  std::fclose(file);
  return static_cast<double>(sum);
}

// The compiler must take the copy as observed, and cannot merge two of them.
void keep_copy(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

int run(const Options& options) {
  if (!pin_to_cpu(0)) die("sched_setaffinity");
  alarm(static_cast<unsigned>(options.limit_seconds));
  const bool streams = options.mode.ends_with("streaming");
  const bool cold = options.mode.starts_with("memfd_cold");
  const auto map =
      options.mode == "anonymous" || options.mode == "streaming" ? map_private : map_memfd;
  struct Pair {
    void* source;
    void* destination;
  };
  std::vector<Pair> pairs(cold ? 8 : 1);
  for (size_t i = 0; i < pairs.size(); ++i) {
    pairs[i] = {map(options.size), map(options.size)};
    fill_pattern(pairs[i].source, options.size, static_cast<uint32_t>(i));
  }
  Samples seconds;
  uint64_t wrong = 0;
  double total = 0, cpu = 0;
  for (uint64_t i = 0; i < options.iterations; ++i) {
    auto [source, destination] = pairs[i % pairs.size()];
    const auto seed = static_cast<uint32_t>(cold ? i % pairs.size() : i);
    if (!cold) fill_pattern(source, options.size, seed);
    // Once each: twice would put it right.
    if (options.corrupt && (!cold || i < pairs.size())) flip_one_bit(source, options.size);
    const double cpu_before = process_cpu_seconds();
    const uint64_t start = now_ns();
    burn_ns(options.slow_ns);
    streams ? copy_by_streaming(destination, source, options.size)
            : static_cast<void>(std::memcpy(destination, source, options.size));
    keep_copy(destination);
    const double took = static_cast<double>(now_ns() - start) * 1e-9;
    cpu += process_cpu_seconds() - cpu_before;
    // Cold ones are looked at in the end: looking would warm them.
    if (!cold) wrong += count_mismatches(destination, options.size, seed);
    seconds.add(took);
    total += took;
  }
  for (size_t i = 0; cold && i < std::min<size_t>(pairs.size(), options.iterations); ++i) {
    wrong += count_mismatches(pairs[i].destination, options.size, static_cast<uint32_t>(i));
  }
  if (wrong != 0) return refuse(options, std::to_string(wrong) + " wrong words");
  return JsonLine(options)
      .moved(seconds, total, cpu)
      .number("huge_kib", huge_kib())
      .print_verified();
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "memcpy_bulk";
  options.modes = {"anonymous", "memfd", "memfd_cold", "memfd_cold_streaming", "streaming"};
  options.mode = "anonymous";
  options.size = 64u << 20;
  options.iterations = 16;
  bare::parse_or_exit(options, argc, argv);
  return bare::run(options);
}
