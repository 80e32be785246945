// For programs that have no use for an error: the value, or the reason on stderr and the end.
#ifndef SLUICE_BENCHMARKS_MUST_H_
#define SLUICE_BENCHMARKS_MUST_H_

#include <errno.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include <sluice/base/result.h>

namespace bench {

[[noreturn]] inline void fail(const char* what, const sluice::Status& status) {
  std::fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what,
               status.to_string().c_str());
  std::exit(1);
}
inline void check(const sluice::Status& status, const char* what) {
  if (!status.ok()) fail(what, status);
}
template <typename T>
T must(sluice::Result<T> result, const char* what) {
  if (!result.ok()) fail(what, result.status());
  return std::move(result).value();
}

}  // namespace bench

#endif  // SLUICE_BENCHMARKS_MUST_H_
