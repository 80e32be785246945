// Flags, clock, JSON line and process pair of the bare programs (see program.h).
#include "benchmarks/bare/program.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace bare {

void parse_or_exit(Options& options, int argc, char** argv) {
  CLI::App app{options.name + ": a bare program, the yardstick of one question"};
  app.add_option("--size,-s", options.size, "payload bytes of one iteration")
      ->check(CLI::Range(uint64_t{1}, uint64_t{4} << 30))
      ->capture_default_str();
  app.add_option("--iterations,-n", options.iterations, "iterations that are timed")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 32))
      ->capture_default_str();
  app.add_option("--limit-seconds", options.limit_seconds, "the program is ended after this long")
      ->check(CLI::Range(uint64_t{1}, uint64_t{3600}))
      ->capture_default_str();
  if (!options.modes.empty()) {
    app.add_option("--mode", options.mode, "variant of the program")
        ->check(CLI::IsMember(options.modes))
        ->capture_default_str();
  }
  if (options.paces) {
    app.add_option("--cpu-percent", options.cpu_percent,
                   "the sender sleeps so that it uses no more of one CPU; 0: it never sleeps")
        ->check(CLI::Range(uint64_t{0}, uint64_t{100}))
        ->capture_default_str();
  }
  if (options.caches) {
    app.add_option("--hit-percent", options.hit_percent,
                   "of a hundred buffers that are moved, those that are registered already")
        ->check(CLI::Range(uint64_t{0}, uint64_t{100}));
  }
  if (options.gap_us != 0) {
    app.add_option("--gap-us", options.gap_us, "microseconds between messages")
        ->check(CLI::Range(uint64_t{1}, uint64_t{1000000}))
        ->capture_default_str();
  }
  if (options.working_set != 0) {
    app.add_option("--working-set", options.working_set, "bytes that the victim walks")
        ->check(CLI::Range(uint64_t{128}, uint64_t{4} << 30))
        ->capture_default_str();
  }
  if (options.buffers != 0) {
    app.add_option("--buffers", options.buffers, "buffers that are asked for in turns")
        ->check(CLI::Range(uint64_t{1}, uint64_t{1024}))
        ->capture_default_str();
  }
  if (options.over_tcp) {
    app.add_option("--send-buffer", options.send_buffer,
                   "SO_SNDBUF of both ends; 0: as the kernel tunes it")
        ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 30));
  }
  if (options.under_way != 0) {
    app.add_option("--under-way", options.under_way, "operations at once")
        ->check(CLI::Range(uint64_t{1}, uint64_t{4096}))
        ->capture_default_str();
  }
  // Group "" hides a flag from --help: these two test the benchmark itself.
  app.add_option("--slow-ns", options.slow_ns)->group("");
  app.add_flag("--corrupt", options.corrupt)->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    std::exit(app.exit(help));
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s: %s (for example: --size 64 --iterations 1000)\n",
                 options.name.c_str(), error.what());
    std::exit(kExitUsage);
  }
}

uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

double process_cpu_seconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

Pace::Pace(uint64_t cpu_percent)
    : share_(static_cast<double>(cpu_percent) / 100),
      cpu_before_(process_cpu_seconds()),
      start_ns_(now_ns()) {}

void Pace::keep() const {
  if (share_ == 0) return;
  const double used = process_cpu_seconds() - cpu_before_,
               passed = static_cast<double>(now_ns() - start_ns_) * 1e-9;
  const double ahead = used / share_ - passed;
  if (ahead <= 0) return;
  const auto ns = static_cast<long>(std::clamp(ahead, 1e-3, 0.9) * 1e9);
  const timespec pause{0, ns};
  nanosleep(&pause, nullptr);
}

void spin_for_ns(uint64_t nanoseconds) {
  const uint64_t end = now_ns() + nanoseconds;
  while (now_ns() < end) {}
}

void Samples::sort() { std::sort(values_.begin(), values_.end()); }

std::string Samples::json() const {
  char text[128];
  std::snprintf(text, sizeof text, "{\"min\":%.9g,\"p50\":%.9g,\"max\":%.9g}", min(), p50(), max());
  return text;
}

JsonLine::JsonLine(const Options& options)
    : bytes_(static_cast<double>(options.iterations * options.size)), line_("{") {
  text("name", options.name);
  if (!options.mode.empty()) text("mode", options.mode);
  number("size_bytes", static_cast<double>(options.size));
  number("iterations", static_cast<double>(options.iterations));
}

void JsonLine::key(const char* name) {
  if (line_.size() > 1) line_ += ',';
  line_ += '"';
  line_ += name;
  line_ += "\":";
}

JsonLine& JsonLine::number(const char* name, double value) {
  key(name);
  char text[40];
  std::snprintf(text, sizeof text, "%.12g", value);
  line_ += text;
  return *this;
}

JsonLine& JsonLine::text(const char* name, const std::string& value) {
  return raw(name, '"' + value + '"');
}

JsonLine& JsonLine::raw(const char* name, const std::string& json) {
  key(name);
  line_ += json;
  return *this;
}

JsonLine& JsonLine::moved(Samples& seconds, double total_seconds, double cpu_seconds) {
  seconds.sort();
  return raw("seconds", seconds.json())
      .number("bytes_per_second", bytes_ / total_seconds)
      .number("cpu_seconds", cpu_seconds)
      .number("cpu_seconds_per_gb", cpu_seconds / (bytes_ * 1e-9));
}

int JsonLine::print_verified() {
  key("verified");
  line_ += "true}";
  std::puts(line_.c_str());
  return std::fflush(stdout) == 0 ? 0 : kExitFailed;
}

int refuse(const Options& options, const std::string& what) {
  std::fprintf(stderr, "%s: payload did not verify: %s\n", options.name.c_str(), what.c_str());
  return kExitCorrupt;
}

void die(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, std::strerror(errno));
  std::_Exit(kExitFailed);
}

bool pin_to_cpu(int index) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || index-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return sched_setaffinity(0, sizeof one, &one) == 0;
  }
  return false;
}

namespace {

void* map_touched(size_t bytes, int flags) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) die("mmap");
  madvise(memory, bytes, MADV_HUGEPAGE);  // advice; plain pages where it is not taken
  std::memset(memory, 0, bytes);
  return memory;
}

}  // namespace

void* map_shared(size_t bytes) { return map_touched(bytes, MAP_SHARED); }
void* map_private(size_t bytes) { return map_touched(bytes, MAP_PRIVATE); }

int run_pair(const Options& options, const std::function<int(PeerReport&)>& peer,
             const std::function<int(PeerReport&)>& measure) {
  if (sysconf(_SC_NPROCESSORS_ONLN) < 2) {
    std::fprintf(stderr, "%s: needs two CPUs\n", options.name.c_str());
    return kExitNothingToRunOn;
  }
  auto* report = new (map_shared(sizeof(PeerReport))) PeerReport{};
  signal(SIGPIPE, SIG_IGN);  // a peer that ended early shows as EPIPE, then as its exit status
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) die("fork");
  alarm(static_cast<unsigned>(options.limit_seconds));  // not inherited: set on both sides
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) std::_Exit(kExitFailed);
    if (!pin_to_cpu(0)) die("sched_setaffinity");
    std::_Exit(peer(*report));
  }
  if (!pin_to_cpu(1)) {
    kill(child, SIGKILL);
    die("sched_setaffinity: needs two CPUs in this process's affinity");
  }
  const int result = measure(*report);
  // A measuring side that gave up early would otherwise wait for a peer that waits for it.
  if (result != 0) kill(child, SIGKILL);
  int status = 0;
  if (waitpid(child, &status, 0) != child) die("waitpid");
  if (result != 0) return result;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : kExitFailed;
}

}  // namespace bare
