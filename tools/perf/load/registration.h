// Making memory known to a path, and taking that back, as the library does both: the subject of
// `sluice perf reg`.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <sluice/api/context.h>

#include "tools/perf/flags/plan.h"

namespace sluice::tools {

class Registration {
 public:
  virtual ~Registration() = default;

  // Makes memory of `bytes`, whose pages are there; what was there before goes. Requires: not
  // registered.
  virtual Status prepare(uint64_t bytes) = 0;
  // Blocks: while the kernel or the device does it. Errors: kNoMemory (what may be locked, or
  // mapped).
  virtual Status enter() = 0;
  // Requires: enter() was ok.
  virtual void leave() = 0;
};

// What a path registers with: its device, interface or nothing.
struct RegistrationWay {
  Path path = Path::kNone;
  std::string with;  // "rxe0", for people
  std::unique_ptr<Registration> registration;
};

// Whether memory is registered anywhere on the path that --transport names; "auto" is the best that
// does.
bool registers_memory(std::string_view transport);
// Errors: kUnreachable (no such device or interface), kNoMemory, those of the path.
Result<RegistrationWay> open_registration(Context& context, const PerfOptions& options);

}  // namespace sluice::tools
