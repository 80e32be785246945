// Time as an argument: everything but clock.cc receives Instants. Monotonic,
// nanoseconds, comparable between processes of one machine.
#ifndef SLUICE_BASE_CLOCK_H_
#define SLUICE_BASE_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace sluice {

using Duration = std::chrono::nanoseconds;

struct MonotonicClock {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<MonotonicClock, Duration>;
  static constexpr bool is_steady = true;
  static time_point now();  // CLOCK_MONOTONIC; about 25 ns
};

using Instant = MonotonicClock::time_point;

// A deadline that never comes.
inline constexpr Instant kNever = Instant::max();

inline Instant now() { return MonotonicClock::now(); }

// When the kernel's clock ticked last (CLOCK_MONOTONIC_COARSE): less than 10 ms ago; about 5 ns.
Instant last_tick();

// now + d without overflow; Duration::max() gives kNever.
constexpr Instant after(Instant start, Duration d) {
  return d > Duration(0) && start > Instant::max() - d ? Instant::max() : start + d;
}

// A deadline: now() + d. From a second on it is counted from the kernel's last tick
// (CLOCK_MONOTONIC_COARSE), which is read in a fifth of the time: up to 20 ms later, and earlier
// only if the kernel's tick is late.
Instant from_now(Duration d);

// CPU time (user and system) used by this process so far.
Duration process_cpu_time();
// The same of this thread.
Duration thread_cpu_time();

// Cycle counter for spin loops and latency samples; read with ticks_to_ns().
uint64_t ticks();
double nanoseconds_per_tick();  // calibrated once, about 10 ms at first use

using namespace std::chrono_literals;

}  // namespace sluice

#endif  // SLUICE_BASE_CLOCK_H_
