// What happened in a schedule, in order: a hash that must repeat for a seed, lines for
// a reader who asks, and the first thing that was wrong. Knows no protocol.
#ifndef SLUICE_TESTS_SIM_TRACE_H_
#define SLUICE_TESTS_SIM_TRACE_H_

#include <cstdint>
#include <cstdio>
#include <string>

#include <sluice/base/clock.h>

#include "tests/sim/random.h"

namespace sluice::sim {

// Virtual time starts here: not at the epoch, which means "default" in a deadline.
inline constexpr Instant kStart{std::chrono::seconds(1000)};

class Trace {
 public:
  explicit Trace(bool print) : print_(print) {}

  Instant now = kStart;

  void note(int side, const char* what, uint64_t a = 0, uint64_t b = 0) {
    uint64_t word = 0;
    for (const char* c = what; *c != 0; ++c) word = word * 31 + static_cast<unsigned char>(*c);
    hash_ = mix(hash_ ^ word ^ mix(a + 3 * static_cast<uint64_t>(side)) ^
                mix(b * 7 + static_cast<uint64_t>(now.time_since_epoch().count())));
    if (!print_) return;
    std::printf("%12.3f us  %c  %-22s %llu %llu\n",
                static_cast<double>((now - kStart).count()) / 1e3, side == 0 ? 'A' : 'B', what,
                static_cast<unsigned long long>(a), static_cast<unsigned long long>(b));
  }
  void wrong(const std::string& what) {
    if (print_)
      std::printf("%12.3f us  !  %s\n", static_cast<double>((now - kStart).count()) / 1e3,
                  what.c_str());
    if (first_wrong_.empty()) first_wrong_ = what;
  }
  bool printing() const { return print_; }
  bool ok() const { return first_wrong_.empty(); }
  const std::string& first_wrong() const { return first_wrong_; }
  uint64_t hash() const { return hash_; }

 private:
  bool print_;
  uint64_t hash_ = 0;
  std::string first_wrong_;
};

}  // namespace sluice::sim

#endif  // SLUICE_TESTS_SIM_TRACE_H_
