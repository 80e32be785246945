// What a server says of itself after a round, as its client reads it. Errors of all: kCorrupt (a
// field of another type).
#pragma once

#include <optional>

#include "tools/perf/run/control.h"
#include "tools/perf/run/run.h"

namespace sluice::tools {

// A server of an older version, or a thread of this process, says nothing of it.
Result<std::optional<Usage>> decode_usage(const Json& report);
Result<std::optional<Buffers>> decode_buffers(const Json& report);
Status decode_system_calls(const Json& report, SystemCalls& counted);

}  // namespace sluice::tools
