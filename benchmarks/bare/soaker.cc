// Question: how much of the processors was left over while something ran? A thread on each CPU, at
// idle priority, counts what it could compute; against what it computes in a second of its own,
// that is the time that nobody else had: programs, the kernel's interrupts and threads, and the
// host.
//
//   soaker          prints "calibrated" when it is, counts from the line that it reads on stdin
//   until
//                   stdin ends, then prints its JSON line
//
// The counters of /proc/stat see what runs when the timer ticks, a process's own time leaves out
// what the kernel does for it in interrupts; this sees both. What it changes: no CPU is ever idle,
// so a wake does not have to bring one back from sleep.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include <time.h>

#include "benchmarks/bare/program.h"

namespace bare {
namespace {

// Of a block of work: long beside an addition to the counter, short beside a time slice.
constexpr int kStepsOfBlock = 2000;
constexpr int kCalibrations = 8;
constexpr double kCalibrationSeconds = 0.01;

double thread_cpu_seconds() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

uint64_t block(uint64_t seed) {
  for (int i = 0; i < kStepsOfBlock; ++i) seed = seed * 6364136223846793005u + 1442695040888963407u;
  return seed;
}

class alignas(64) Soaker {
 public:
  explicit Soaker(int cpu) : thread_([this, cpu] { soak(cpu); }) { calibrated_.wait(0.0); }
  ~Soaker() {
    stop_.store(true);
    thread_.join();
  }
  // Seconds of this CPU that it has had.
  double seconds() const { return static_cast<double>(blocks_.load()) / calibrated_.load(); }
  double blocks_per_second() const { return calibrated_.load(); }
  uint64_t result() const { return result_.load(); }

 private:
  // The best of several: what disturbs a calibration makes it slower, never faster.
  void calibrate() {
    double best = 0;
    for (int i = 0; i < kCalibrations; ++i) {
      const double start = thread_cpu_seconds();
      double now = start;
      uint64_t blocks = 0;
      for (; now - start < kCalibrationSeconds; now = thread_cpu_seconds(), ++blocks)
        result_.store(block(result_.load()));
      best = std::max(best, static_cast<double>(blocks) / (now - start));
    }
    calibrated_.store(best);
    calibrated_.notify_one();
  }

  void soak(int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) die("sched_setaffinity");
    calibrate();
    const sched_param none{};
    if (sched_setscheduler(0, SCHED_IDLE, &none) != 0) die("SCHED_IDLE");
    while (!stop_.load(std::memory_order_relaxed)) {
      result_.store(block(result_.load(std::memory_order_relaxed)), std::memory_order_relaxed);
      blocks_.store(blocks_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
  }

  std::atomic<uint64_t> blocks_{0}, result_{1};
  std::atomic<double> calibrated_{0.0};
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: it uses the others
};

double sum_of_seconds(const std::vector<std::unique_ptr<Soaker>>& soakers) {
  double sum = 0;
  for (const auto& soaker : soakers) sum += soaker->seconds();
  return sum;
}

// True: a line was read; false: the end.
bool line_from_stdin() {
  char byte;
  ssize_t got;
  while ((got = read(STDIN_FILENO, &byte, 1)) == 1 && byte != '\n') {}
  return got == 1;
}

int run(const Options& options) {
  alarm(static_cast<unsigned>(options.limit_seconds));
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) die("sched_getaffinity");
  std::vector<std::unique_ptr<Soaker>> soakers;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) soakers.push_back(std::make_unique<Soaker>(cpu));
  }
  std::puts("calibrated");
  if (std::fflush(stdout) != 0 || !line_from_stdin()) return kExitUsage;
  const double before = sum_of_seconds(soakers), cpu_before = process_cpu_seconds();
  const uint64_t start = now_ns();
  while (line_from_stdin()) {}
  const double seconds = static_cast<double>(now_ns() - start) * 1e-9,
               cpu = process_cpu_seconds() - cpu_before;
  double soaked = sum_of_seconds(soakers) - before;
  if (options.corrupt) soaked += 1 + 2 * seconds * static_cast<double>(soakers.size());
  // A fifth more than there was: the calibration was of another machine than this one.
  const double there_was = seconds * static_cast<double>(soakers.size());
  if (soaked > 1.2 * there_was + 0.05) return refuse(options, "more was left over than there was");
  return JsonLine(options)
      .number("cpus", static_cast<double>(soakers.size()))
      .number("blocks_per_second", soakers[0]->blocks_per_second())
      .number("seconds", seconds)
      .number("cpu_seconds", cpu)
      .number("soaked_seconds", soaked)
      .number("used_seconds", std::max(there_was - soaked, 0.0))
      .print_verified();
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "soaker";
  bare::parse_or_exit(options, argc, argv);
  return bare::run(options);
}
