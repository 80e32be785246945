// How a flow over a long line goes: the time until the first 64 MiB have come, and the rate after
// the first two seconds, when the senders know the line. Must not know what counts the bytes.
#pragma once

#include <cstdint>

#include "benchmarks/bare/program.h"

namespace bare {

class LineMeter {
 public:
  // Begins when it is made: when the receiver says that it is ready. `seconds`: more than two.
  explicit LineMeter(uint64_t seconds)
      : start_ns_(now_ns()), end_ns_(start_ns_ + seconds * 1'000'000'000) {}

  // So many bytes have come since the beginning. False: it is over.
  bool saw(uint64_t bytes) {
    const uint64_t now = now_ns();
    if (first_ns_ == 0 && bytes >= kFirstBytes) first_ns_ = now - start_ns_;
    if (settled_ns_ == 0 && now - start_ns_ >= kSettledNs) {
      settled_ns_ = now;
      settled_bytes_ = bytes;
    }
    last_ns_ = now;
    last_bytes_ = bytes;
    return now < end_ns_;
  }

  // After the first two seconds.
  double bytes_per_second() const {
    return static_cast<double>(last_bytes_ - settled_bytes_) /
           (static_cast<double>(last_ns_ - settled_ns_) * 1e-9);
  }
  // Of the first 64 MiB; 0: they never came.
  double first_seconds() const { return static_cast<double>(first_ns_) * 1e-9; }
  // Prints the figures. `cpu_seconds`: of both ends. Returns the program's exit code.
  int print(const Options& options, double cpu_seconds) const {
    return JsonLine(options)
        .number("seconds", first_seconds())
        .number("bytes_per_second", bytes_per_second())
        .number("cpu_seconds_per_gb", cpu_seconds / (static_cast<double>(last_bytes_) * 1e-9))
        .print_verified();
  }

 private:
  static constexpr uint64_t kFirstBytes = uint64_t{64} << 20;
  static constexpr uint64_t kSettledNs = 2'000'000'000;
  uint64_t start_ns_, end_ns_;
  uint64_t first_ns_ = 0, settled_ns_ = 0, settled_bytes_ = 0, last_ns_ = 0, last_bytes_ = 0;
};

}  // namespace bare
