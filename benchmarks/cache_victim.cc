// Question: what does a copy do to the cache of others, and do stores that go past the caches
// (copy_past_caches, what `stream_copy_bytes` turns on) spare it?
//
// A victim walks its working set (--working-set bytes, one dependent load per line, in scattered
// order), again and again; a copier copies blocks of --size bytes.
// --mode alone            no copier
//        after_memcpy     victim and copier are one thread: a copy, then a walk
//        after_streaming  likewise, past the caches
//        beside_memcpy    the copier copies without a pause on another CPU
//        beside_streaming likewise, past the caches
// `seconds` are the victim's, per line; `bytes_per_second` are the copier's.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <string>

#include <sluice/base/copy.h>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"

namespace bare {
namespace {

constexpr size_t kCacheLine = 64;
constexpr uint32_t kSeed = 11;

class Victim {
 public:
  // One circle through all lines (see bare/operation_cost.cc, cache_miss). As many lines as a power
  // of two allows.
  explicit Victim(uint64_t bytes) {
    while (lines_ * 2 * kCacheLine <= bytes) lines_ *= 2;
    links_ = static_cast<Link*>(map_private(lines_ * kCacheLine));
    for (uint64_t i = 0; i < lines_; ++i)
      links_[i].next = (i * 6364136223846793005u + 1442695040888963407u) & (lines_ - 1);
  }
  // Seconds per line of one walk around.
  double walk(uint64_t slow_ns) {
    const uint64_t start = now_ns();
    for (uint64_t i = 0; i < lines_; ++i) {
      at_ = links_[at_].next;
      burn_ns(slow_ns);
    }
    return static_cast<double>(now_ns() - start) * 1e-9 / static_cast<double>(lines_);
  }
  // A walk around the circle ends where it began.
  uint64_t at() const { return at_; }

 private:
  struct alignas(kCacheLine) Link {
    uint64_t next;
  };
  Link* links_ = nullptr;
  uint64_t lines_ = 2, at_ = 0;
};

class Copier {
 public:
  Copier(uint64_t bytes, bool past_caches) : bytes_(bytes), past_caches_(past_caches) {
    from_ = static_cast<std::byte*>(map_private(bytes));
    to_ = static_cast<std::byte*>(map_private(bytes));
    fill_pattern(from_, bytes, kSeed);
  }
  void copy() {
    const uint64_t start = now_ns();
    sluice::copy_bytes(to_, from_, bytes_, past_caches_);
    ns_ += now_ns() - start;
    copied_ += bytes_;
  }
  double bytes_per_second() const {
    return static_cast<double>(copied_) / (static_cast<double>(ns_) * 1e-9);
  }
  // Words that are not as they were sent.
  uint64_t wrong(bool corrupt) {
    if (corrupt) flip_one_bit(to_, bytes_);
    return copied_ == 0 ? 1 : count_mismatches(to_, bytes_, kSeed);
  }

 private:
  uint64_t bytes_;
  bool past_caches_;
  std::byte *from_, *to_;
  uint64_t ns_ = 0, copied_ = 0;
};

// Of the two processes of modes beside_*.
struct Shared {
  std::atomic<bool> copying{false}, enough{false};
  double bytes_per_second = 0;
};

constexpr uint64_t kWarmUpWalks = 2;

int report(const Options& options, Samples& seconds, double cpu, double bytes_per_second) {
  seconds.sort();
  JsonLine line(options);
  line.number("working_set_bytes", static_cast<double>(options.working_set))
      .raw("seconds", seconds.json())
      .number("cpu_seconds", cpu);
  if (bytes_per_second > 0) line.number("bytes_per_second", bytes_per_second);
  return line.print_verified();
}

int alone_or_after(const Options& options) {
  if (!pin_to_cpu(0)) die("sched_setaffinity");
  alarm(static_cast<unsigned>(options.limit_seconds));
  const bool copies = options.mode != "alone";
  Victim victim(options.working_set);
  Copier copier(copies ? options.size : kCacheLine, options.mode == "after_streaming");
  Samples seconds;
  const double cpu_before = process_cpu_seconds();
  for (uint64_t i = 0; i < kWarmUpWalks + options.iterations; ++i) {
    if (copies || i == 0) copier.copy();
    const double took = victim.walk(i < kWarmUpWalks ? 0 : options.slow_ns);
    if (i >= kWarmUpWalks) seconds.add(took);
  }
  const double cpu = process_cpu_seconds() - cpu_before;
  if (const uint64_t wrong = copier.wrong(options.corrupt); wrong != 0)
    return refuse(options, std::to_string(wrong) + " wrong words");
  if (victim.at() != 0) return refuse(options, "the victim's walk");
  return report(options, seconds, cpu, copies ? copier.bytes_per_second() : 0);
}

int copy_beside(const Options& options, Shared& shared, PeerReport& peer) {
  Copier copier(options.size, options.mode == "beside_streaming");
  const double cpu_before = process_cpu_seconds();
  do {
    copier.copy();
    shared.copying.store(true);
  } while (!shared.enough.load());
  peer.cpu_seconds = process_cpu_seconds() - cpu_before;
  shared.bytes_per_second = copier.bytes_per_second();
  peer.mismatches = copier.wrong(options.corrupt);
  shared.copying.store(false);
  return 0;
}

int suffer(const Options& options, Shared& shared, const PeerReport& peer) {
  Victim victim(options.working_set);
  Samples seconds;
  const double cpu_before = process_cpu_seconds();
  while (!shared.copying.load()) {}
  for (uint64_t i = 0; i < kWarmUpWalks + options.iterations; ++i) {
    const double took = victim.walk(i < kWarmUpWalks ? 0 : options.slow_ns);
    if (i >= kWarmUpWalks) seconds.add(took);
  }
  const double cpu = process_cpu_seconds() - cpu_before;
  shared.enough.store(true);
  while (shared.copying.load()) {}
  if (peer.mismatches != 0)
    return refuse(options, std::to_string(peer.mismatches) + " wrong words");
  if (victim.at() != 0) return refuse(options, "the victim's walk");
  return report(options, seconds, cpu + peer.cpu_seconds, shared.bytes_per_second);
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "cache_victim";
  options.modes = {"alone", "after_memcpy", "after_streaming", "beside_memcpy", "beside_streaming"};
  options.mode = "alone";
  options.size = 16u << 20;
  options.working_set = 1u << 20;
  options.iterations = 20;
  bare::parse_or_exit(options, argc, argv);
  if (!options.mode.starts_with("beside")) return bare::alone_or_after(options);
  auto* shared = new (bare::map_shared(sizeof(bare::Shared))) bare::Shared;
  return bare::run_pair(
      options,
      [&](bare::PeerReport& report) { return bare::copy_beside(options, *shared, report); },
      [&](bare::PeerReport& report) { return bare::suffer(options, *shared, report); });
}
