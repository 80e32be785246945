// Question: what do the operations cost that the time of a frame is spent on: a system call, a
// lock, an atomic addition, a cache miss, an interrupt, a wake? One mode for each; figures are
// seconds per operation, averaged over batches of 128.
//
// --mode system_call   getppid by syscall(2): no work, no vDSO
//        lock          pthread_mutex_lock, an addition, unlock; a second thread exists and sleeps
//        lock_shared   the same lock, which the other CPU takes as often as it can. Only batches
//        count in
//                      which it did
//        atomic        fetch_add on a line of its own
//        atomic_shared the same line, to which the other CPU adds all the time. Likewise
//        cache_miss    one load whose address is the last load's result, anywhere in --size bytes
//        futex_wake    from FUTEX_WAKE to the moment when a thread that slept on the other CPU
//        runs: an
//                      interrupt to an idle processor, and a switch to the thread. Only wakes count
//                      whose thread did sleep (its voluntary switches)
//        eventfd_wake  the same by eventfd(2)
//        interrupt     what a running thread loses to an interrupt of its processor: a timer that
//                      wakes nobody expires every 50 us; the gaps it leaves in a loop that reads
//                      the clock. The kernel's work for the timer is in it
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"

namespace bare {
namespace {

constexpr size_t kCacheLine = 64;

// The CPUs of this process before its first thread was pinned to one.
cpu_set_t g_allowed;

struct alignas(kCacheLine) Line {
  std::atomic<uint64_t> value{0};
};

// What came out of the timed operations, against what must come out.
struct Count {
  uint64_t seen = 0, expected = 0;
};

struct Timing {
  Samples seconds;
  double total = 0;
  uint64_t batches = 0;
};

// Times `operation` by batches until enough of them count.
template <typename Operation, typename Counts>
Timing in_batches(const Options& options, Operation operation, Counts counts) {
  Timing timing;
  while (timing.batches < options.iterations / kBatchOfFastRounds) {
    const uint64_t start = now_ns();
    for (uint64_t i = 0; i < kBatchOfFastRounds; ++i) {
      operation();
      burn_ns(options.slow_ns);
    }
    const double took = static_cast<double>(now_ns() - start) * 1e-9;
    if (!counts()) continue;
    timing.seconds.add(took / static_cast<double>(kBatchOfFastRounds));
    timing.total += took;
    ++timing.batches;
  }
  return timing;
}

template <typename Operation>
Timing in_batches(const Options& options, Operation operation) {
  return in_batches(options, operation, [] { return true; });
}

// Whether the other CPU took part in the last batch: at least one addition of its to ten of ours.
// A machine that is busy runs the two threads in turns, which shares nothing.
class Shared {
 public:
  // `additions`: of both, so far.
  bool took_part(uint64_t additions) {
    const uint64_t of_others = additions - last_ - kBatchOfFastRounds;
    last_ = additions;
    return of_others >= kBatchOfFastRounds / 10;
  }

 private:
  uint64_t last_ = 0;
};

// A thread on the other CPU, from its making to its end; it has begun when the constructor returns.
class Companion {
 public:
  explicit Companion(std::function<void(const std::atomic<bool>& stop)> work)
      : thread_([this, work = std::move(work)] {
          // Born where its maker is pinned.
          if (sched_setaffinity(0, sizeof g_allowed, &g_allowed) != 0 || !pin_to_cpu(0))
            die("sched_setaffinity");
          begun_.store(true);
          begun_.notify_one();
          work(stop_);
        }) {
    begun_.wait(false);
  }
  ~Companion() { end(); }
  // Returns when the thread is over. Its work must look at `stop`, or be over by itself.
  void end() {
    stop_.store(true);
    stop_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> stop_{false}, begun_{false};
  std::thread thread_;
};

Timing system_call(const Options& options, Count& count) {
  const long parent = getppid();
  return in_batches(options, [&] {
    count.seen += syscall(SYS_getppid) == parent ? 1 : 0;
    ++count.expected;
  });
}

// glibc takes a lock without an atomic operation while a process has one thread only.
Timing lock(const Options& options, Count& count, bool shared) {
  struct {
    alignas(kCacheLine) pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    uint64_t additions = 0;
  } guarded;
  const auto add = [&] {
    pthread_mutex_lock(&guarded.mutex);
    const uint64_t additions = ++guarded.additions;
    pthread_mutex_unlock(&guarded.mutex);
    return additions;
  };
  uint64_t ours = 0, others = 0, last = 0;
  Companion other([&](const std::atomic<bool>& stop) {
    if (!shared) return stop.wait(false);
    for (; !stop.load(std::memory_order_relaxed); ++others) add();
  });
  Shared share;
  Timing timing = in_batches(
      options,
      [&] {
        last = add();
        ++ours;
      },
      [&] { return share.took_part(last) || !shared; });
  other.end();
  count = {guarded.additions, ours + others};
  return timing;
}

Timing atomic_addition(const Options& options, Count& count, bool shared) {
  Line line;
  uint64_t ours = 0, others = 0;
  Companion other([&](const std::atomic<bool>& stop) {
    if (!shared) return stop.wait(false);
    for (; !stop.load(std::memory_order_relaxed); ++others)
      line.value.fetch_add(1, std::memory_order_relaxed);
  });
  Shared share;
  Timing timing = in_batches(
      options,
      [&] {
        line.value.fetch_add(1, std::memory_order_relaxed);
        ++ours;
      },
      [&] { return share.took_part(line.value.load()) || !shared; });
  other.end();
  count = {line.value.load(), ours + others};
  return timing;
}

// The lines of the block form one circle: each holds the index of the next, which a linear
// congruence scatters over the whole block (of full period, since the number of lines is a power of
// two, the factor is 1 modulo 4 and the addend odd: Hull and Dobell 1962).
Timing cache_miss(const Options& options, Count& count) {
  uint64_t lines = 2;
  while (lines * 2 * kCacheLine <= options.size) lines *= 2;
  const auto next = [mask = lines - 1](uint64_t at) {
    return (at * 6364136223846793005u + 1442695040888963407u) & mask;
  };
  struct alignas(kCacheLine) Link {
    uint64_t next;
  };
  auto* links = static_cast<Link*>(map_private(lines * kCacheLine));
  for (uint64_t i = 0; i < lines; ++i) links[i].next = next(i);
  uint64_t at = 0;
  Timing timing = in_batches(options, [&] { at = links[at].next; });
  uint64_t expected = 0;
  for (uint64_t i = 0; i < options.iterations; ++i) expected = next(expected);
  count = {at, expected};
  return timing;
}

// What is slept on and what wakes it.
class Bell {
 public:
  explicit Bell(bool futex) : futex_(futex), fd_(eventfd(0, EFD_CLOEXEC)) {
    if (fd_ < 0) die("eventfd");
  }
  ~Bell() { close(fd_); }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  void ring() {
    const uint64_t one = 1;
    if (!futex_) {
      if (write(fd_, &one, sizeof one) != sizeof one) die("eventfd");
      return;
    }
    rung_.value.store(rung_.value.load() + 1);
    call_futex(FUTEX_WAKE, 1);
  }
  // Returns when it has rung more than `before` times.
  void sleep(uint64_t before) {
    uint64_t rung = before;
    if (!futex_) {
      if (read(fd_, &rung, sizeof rung) != sizeof rung) die("eventfd");
      return;
    }
    while ((rung = rung_.value.load()) <= before)
      call_futex(FUTEX_WAIT, static_cast<uint32_t>(rung));
  }

 private:
  // The low half of the number: little-endian, as all machines that this runs on.
  void call_futex(int operation, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&rung_.value), operation | FUTEX_PRIVATE_FLAG,
            value, nullptr, nullptr, 0);
  }

  bool futex_;
  int fd_;
  Line rung_;
};

long voluntary_switches() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

// How long the thread is left alone before it is woken: its processor is idle by then.
constexpr uint64_t kAsleepNs = 30'000;

Timing wake(const Options& options, Count& count, bool futex) {
  Bell bell(futex);
  struct {
    Line sleeps, woken,
        at_ns;  // how many times it went to sleep and woke; when it woke; 0: it had not slept
  } other;
  std::atomic<bool> enough{false};
  Companion sleeper([&](const std::atomic<bool>&) {
    for (uint64_t i = 0; !enough.load(); ++i) {
      const long before = voluntary_switches();
      other.sleeps.value.store(i + 1);
      bell.sleep(i);
      const uint64_t at = now_ns();
      other.at_ns.value.store(voluntary_switches() != before ? at : 0);
      other.woken.value.store(i + 1);
    }
  });
  Timing timing;
  uint64_t rings = 0;
  while (timing.batches < options.iterations) {
    while (other.sleeps.value.load() <= rings) {}
    burn_ns(kAsleepNs);
    const uint64_t start = now_ns();
    burn_ns(options.slow_ns);
    bell.ring();
    ++rings;
    while (other.woken.value.load() < rings) {}
    const uint64_t woke = other.at_ns.value.load();
    if (woke <= start) continue;
    const double took = static_cast<double>(woke - start) * 1e-9;
    timing.seconds.add(took);
    timing.total += took;
    ++timing.batches;
  }
  count = {other.woken.value.load(), rings};
  // It may be about to sleep again.
  enough.store(true);
  bell.ring();
  sleeper.end();
  return timing;
}

// Of the timer. Between two expiries a loop that reads the clock runs some thousand times.
constexpr uint64_t kTimerNs = 50'000;
// A shorter gap is a slow step of the loop, no interrupt: entering and leaving the kernel takes
// more.
constexpr uint64_t kGapNs = 200;

uint64_t expiries_of(int timer) {
  uint64_t expiries = 0;
  if (read(timer, &expiries, sizeof expiries) != sizeof expiries && errno != EAGAIN) die("timerfd");
  return expiries;
}

// Each expiry must leave a gap: else the interrupts went to another processor.
Timing interrupt(const Options& options, Count& count) {
  const int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  const itimerspec every{.it_interval = {0, kTimerNs}, .it_value = {0, kTimerNs}};
  if (timer < 0 || timerfd_settime(timer, 0, &every, nullptr) != 0) die("timerfd");
  Timing timing;
  for (uint64_t last = now_ns(), now; timing.batches < options.iterations; last = now) {
    now = now_ns();
    if (now - last < kGapNs) continue;
    burn_ns(options.slow_ns);
    const double gap = static_cast<double>((options.slow_ns != 0 ? now_ns() : now) - last) * 1e-9;
    timing.seconds.add(gap);
    timing.total += gap;
    ++timing.batches;
    now = now_ns();
  }
  // A gap may hold several expiries, and a host may take the processor away for longer than one.
  const uint64_t expiries = expiries_of(timer);
  close(timer);
  count = {expiries >= timing.batches / 2 ? timing.batches : 0, timing.batches};
  return timing;
}

Timing measure(const Options& options, Count& count) {
  if (options.mode == "system_call") return system_call(options, count);
  if (options.mode == "lock" || options.mode == "lock_shared")
    return lock(options, count, options.mode == "lock_shared");
  if (options.mode == "atomic" || options.mode == "atomic_shared")
    return atomic_addition(options, count, options.mode == "atomic_shared");
  if (options.mode == "cache_miss") return cache_miss(options, count);
  if (options.mode == "interrupt") return interrupt(options, count);
  return wake(options, count, options.mode == "futex_wake");
}

int run(Options options) {
  alarm(static_cast<unsigned>(options.limit_seconds));
  if (sched_getaffinity(0, sizeof g_allowed, &g_allowed) != 0) die("sched_getaffinity");
  if (!pin_to_cpu(1)) {
    std::fprintf(stderr, "operation_cost: needs two CPUs\n");
    return kExitNothingToRunOn;
  }
  const uint64_t batches = (options.iterations + kBatchOfFastRounds - 1) / kBatchOfFastRounds;
  options.iterations = batches * kBatchOfFastRounds;
  Count count;
  const double cpu_before = process_cpu_seconds();
  Timing timing = measure(options, count);
  const double cpu = process_cpu_seconds() - cpu_before;
  if (options.corrupt) flip_one_bit(&count.seen, sizeof count.seen);
  if (count.seen != count.expected) {
    return refuse(options, "the operations came to " + std::to_string(count.seen) + ", not " +
                               std::to_string(count.expected));
  }
  timing.seconds.sort();
  return JsonLine(options)
      .raw("seconds", timing.seconds.json())
      .number("cpu_seconds", cpu)
      .print_verified();
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "operation_cost";
  options.modes = {"system_call", "lock",       "lock_shared",  "atomic",   "atomic_shared",
                   "cache_miss",  "futex_wake", "eventfd_wake", "interrupt"};
  options.mode = "system_call";
  options.size = 1u << 30;  // of cache_miss alone
  options.iterations = 20'000;
  bare::parse_or_exit(options, argc, argv);
  return bare::run(options);
}
