// What every bare program shares: its flags, the clock, the process pair, and
// the one JSON line that it prints.
//
// The bare programs say what the machine itself can do. They must not know any
// sluice code: they are the yardstick that sluice is held against.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace bare {

// Exit codes of all benchmark programs, the same as those of the `sluice` command.
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitCorrupt = 4;
inline constexpr int kExitLost = 5;  // a frame or datagram was lost that nothing repeats: run again
inline constexpr int kExitNothingToRunOn = 77;

inline constexpr uint64_t kNoHitPercent = ~uint64_t{0};

struct Options {
  std::string name;                // the program, first field of its JSON line
  std::string mode;                // one of `modes`; empty if the program has none
  std::vector<std::string> modes;  // the modes this program accepts
  bool over_tcp = false;           // this program takes --send-buffer
  bool paces = false;              // this program takes --cpu-percent
  uint64_t size = 64;              // payload bytes of one iteration
  uint64_t iterations = 0;
  uint64_t limit_seconds = 120;  // SIGALRM ends both processes after this long
  uint64_t cpu_percent = 0;  // a sender sleeps so that it uses no more of one CPU; 0: as it can.
                             // For programs that pace
  bool caches = false;       // this program takes --hit-percent
  uint64_t hit_percent = kNoHitPercent;
  uint64_t gap_us = 0;       // between messages; 0: a program that takes none
  uint64_t working_set = 0;  // bytes that a victim walks; 0: a program without one
  uint64_t buffers = 0;      // that are asked for in turns; 0: a program without
  uint64_t send_buffer = 0;  // of each end's socket, SO_SNDBUF; 0: as the kernel tunes it
  uint64_t under_way = 0;    // operations at once; 0: a program that takes none
  uint64_t slow_ns = 0;      // busy time added to each iteration, to see that a ratio moves
  bool corrupt = false;      // flips one payload bit, to see that verification notices
};

// Fills `options` from the command line on top of the defaults that it holds.
// Errors: exits with kExitUsage and a message naming the flag.
void parse_or_exit(Options& options, int argc, char** argv);

uint64_t now_ns();
// CPU time of this process, user and system, all threads.
double process_cpu_seconds();
// Keeps this process at that share of one CPU, from its making on.
class Pace {
 public:
  explicit Pace(uint64_t cpu_percent);
  // Sleeps until the share is not more, a millisecond at least if it is.
  void keep() const;

 private:
  double share_, cpu_before_;
  uint64_t start_ns_;
};
// Busy waits; models work that the measured code should not have done. The test
// for zero is inline: a call would show in a round trip of 60 ns.
void spin_for_ns(uint64_t nanoseconds);
inline void burn_ns(uint64_t nanoseconds) {
  if (nanoseconds != 0) [[unlikely]]
    spin_for_ns(nanoseconds);
}

// Samples of one quantity; `sort()` must run before the accessors.
class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  void sort();
  double min() const { return values_.front(); }
  double p50() const { return values_[values_.size() / 2]; }
  double max() const { return values_.back(); }
  bool empty() const { return values_.empty(); }
  // {"min":..,"p50":..,"max":..}
  std::string json() const;

 private:
  std::vector<double> values_;
};

// Builds the program's JSON line field by field; numbers keep full precision.
class JsonLine {
 public:
  explicit JsonLine(const Options& options);
  JsonLine& number(const char* key, double value);
  JsonLine& text(const char* key, const std::string& value);
  JsonLine& raw(const char* key, const std::string& json);
  // What every program that moves bytes says of its iterations: the seconds of each,
  // bytes_per_second by the seconds of all, and the CPU of all its processes, by itself and for
  // each GB.
  JsonLine& moved(Samples& seconds, double total_seconds, double cpu_seconds);
  // Prints the line with "verified":true and returns 0. The only way to print a
  // figure: a caller whose payload did not verify calls `refuse` instead.
  int print_verified();

 private:
  void key(const char* name);
  double bytes_;  // of all iterations
  std::string line_;
};

// Says on stderr what did not verify, prints no figure, returns kExitCorrupt.
int refuse(const Options& options, const std::string& what);

// Counts of user-visible results that the peer process hands back to the
// measuring one. Lives in a shared mapping.
struct PeerReport {
  double cpu_seconds = 0;
  uint64_t mismatches = 0;
};

// Runs `peer` in a forked child on one CPU and `measure` here on another, and
// returns what `measure` returns, or kExitFailed if the child did not exit 0.
// Exits with kExitNothingToRunOn on a machine with one CPU. Both processes are
// bounded by options.limit_seconds, and the child dies with its parent.
int run_pair(const Options& options, const std::function<int(PeerReport&)>& peer,
             const std::function<int(PeerReport&)>& measure);

// Pins this process to the `index`-th CPU that it is allowed to use.
bool pin_to_cpu(int index);

// Memory shared by the pair (MAP_SHARED, before the fork), zeroed and touched.
// Exits with kExitFailed if the kernel refuses.
void* map_shared(size_t bytes);
// Private memory, page aligned, huge-page advised and touched.
void* map_private(size_t bytes);

// Splits `iterations` into batches so that reading the clock (about 25 ns) stays
// under 1 % of a batch of the fastest program here.
inline constexpr uint64_t kBatchOfFastRounds = 128;

[[noreturn]] void die(const char* what);  // with errno's message, kExitFailed

}  // namespace bare
