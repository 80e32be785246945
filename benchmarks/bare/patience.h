// How long a bare program waits for frames or datagrams, which nothing repeats: after one is lost,
// both ends would wait without end. A busy machine may lose one: the interfaces of all namespaces
// share a queue of 1,000 frames for each processor.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "benchmarks/bare/program.h"

namespace bare {

inline constexpr int kPatienceMs = 10'000;

[[noreturn]] inline void lost(const char* program) {
  std::fprintf(stderr,
               "%s: nothing came for 10 s: a frame was lost; run again, with less beside it\n",
               program);
  std::exit(kExitLost);
}

// Of one wait.
class Patience {
 public:
  explicit Patience(const char* program) : program_(program) {}
  // After each look that found nothing.
  void spin() {
    if (++looks_ % 4096 != 0) return;
    if (since_ns_ == 0) since_ns_ = now_ns();
    if (now_ns() - since_ns_ > uint64_t{kPatienceMs} * 1'000'000) lost(program_);
  }

 private:
  const char* program_;
  uint32_t looks_ = 0;
  uint64_t since_ns_ = 0;
};

}  // namespace bare
