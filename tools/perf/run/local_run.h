// The tests that one process does alone, without a peer: what this machine's memory takes (memcpy),
// and what it costs to make memory known to a path (reg).
#pragma once

#include <functional>

#include "tools/perf/run/run.h"

namespace sluice::tools {

// Calls on_begin when the path is known, on_result after each size.
Status run_local(Context& context, const RunOptions& options, ClientRun& out,
                 const std::function<void(const EndpointInfo&)>& on_begin,
                 const std::function<void(const Measurement&)>& on_result);

}  // namespace sluice::tools
