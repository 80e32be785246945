#include <sluice/base/clock.h>

#include <sys/resource.h>
#include <time.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace sluice {

namespace {

// The kernel's coarse clock is less than two ticks behind. Linux has 100 to 1,000 a second
// (CONFIG_HZ).
constexpr Duration kTwoTicks = 20ms;
constexpr Duration kCoarseFrom = 1s;

Instant read(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return Instant(Duration(t.tv_sec * 1'000'000'000LL + t.tv_nsec));
}

}  // namespace

Instant MonotonicClock::now() { return read(CLOCK_MONOTONIC); }

Instant last_tick() { return read(CLOCK_MONOTONIC_COARSE); }

Instant from_now(Duration d) {
  return d < kCoarseFrom ? after(now(), d) : after(after(last_tick(), kTwoTicks), d);
}

Duration process_cpu_time() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  auto ns = [](const timeval& v) { return v.tv_sec * 1'000'000'000LL + v.tv_usec * 1'000LL; };
  return Duration(ns(usage.ru_utime) + ns(usage.ru_stime));
}

Duration thread_cpu_time() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return Duration(t.tv_sec * 1'000'000'000LL + t.tv_nsec);
}

uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return static_cast<uint64_t>(now().time_since_epoch().count());
#endif
}

#if defined(__x86_64__)
namespace {

struct Reading {
  Instant time;
  uint64_t ticks;
};

// Both at one moment: of some tries the one that took least, which nothing has interrupted.
Reading read_both() {
  Reading best{};
  Duration least = Duration::max();
  for (int i = 0; i < 20; ++i) {
    const Instant before = now();
    const uint64_t between = ticks();
    const Duration took = now() - before;
    if (took < least) best = {before + took / 2, between}, least = took;
  }
  return best;
}

}  // namespace
#endif

double nanoseconds_per_tick() {
#if defined(__x86_64__)
  static const double value = [] {
    const Reading first = read_both();
    while (now() - first.time < std::chrono::milliseconds(10)) {}
    const Reading last = read_both();
    return static_cast<double>((last.time - first.time).count()) /
           static_cast<double>(last.ticks - first.ticks);
  }();
  return value;
#else
  return 1.0;
#endif
}

}  // namespace sluice
