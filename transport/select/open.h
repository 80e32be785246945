// A ready Context with every backend this build has: the only place that names them.
#ifndef SLUICE_SELECT_OPEN_H_
#define SLUICE_SELECT_OPEN_H_

#include <memory>
#include <string>
#include <vector>

#include <sluice/api/context.h>

namespace sluice {

// Errors: kNoMemory (arena, descriptors), kInvalidArgument (options, SLUICE_ARENA_LIMIT,
// SLUICE_TUNING). Cost: under a millisecond; memory comes with the first allocation.
Result<std::unique_ptr<Context>> open_context(const ContextOptions& options = {});

// One path on this machine, for `sluice info --explain`.
struct PathReport {
  Path path = Path::kNone;
  bool usable = false;
  std::string why;  // usable for what, or what is missing and how to get it
  PathProperties properties;
};
// Best first, as sluice:// tries them.
std::vector<PathReport> explain_paths();

// The order in which sluice:// tries the paths, and why it does not try the others.
std::string explain_order();

}  // namespace sluice

#endif  // SLUICE_SELECT_OPEN_H_
