// What every fuzz target and the replay share: one entry point, and the way out when a
// rule is broken. Built by run.sh with libFuzzer and by Bazel with replay.cc.
#ifndef SLUICE_TESTS_FUZZ_TARGET_H_
#define SLUICE_TESTS_FUZZ_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace sluice::fuzz {

// Ends the process, so that the fuzzer keeps the input, if `problem` is not empty.
inline void require_no(const std::string& problem) {
  if (problem.empty()) return;
  std::fprintf(stderr, "rule broken: %s\n", problem.c_str());
  std::abort();
}

}  // namespace sluice::fuzz

#endif  // SLUICE_TESTS_FUZZ_TARGET_H_
