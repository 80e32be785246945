// What the programs that measure starts share: a server that stays, and processes that are started
// one after the other and say when their first operation is done.
#pragma once

#include <functional>
#include <string>

#include "benchmarks/bare/program.h"

namespace bare {

// The word that a started process has as its first argument; the server's address follows.
inline constexpr const char* kStarted = "--started";

// Runs `serve` in a forked child, which writes its address to the descriptor that it is given, and
// ends it afterwards. Then starts this program anew options.iterations times. A sample is the time
// from before the start until the process has called first_operation_done(). Returns the exit code.
int measure_starts(const Options& options, const std::function<int(int address)>& serve);

// In a started process. The process that measures reads it from descriptor 3.
void first_operation_done();

}  // namespace bare
