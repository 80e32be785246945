// Server, client, or both ends: opens contexts, connects, runs, reports, cleans up.
#pragma once

#include <functional>
#include <string_view>

#include "tools/perf/run/control.h"
#include "tools/perf/flags/plan.h"

namespace sluice::tools {

// A value of --transport: one that can be asked for, here or in another build.
bool is_transport(std::string_view name);
// Its addresses begin with an interface: kmod, l2 and xdp.
bool takes_interface(std::string_view transport);

// Where a client connects to, or a server listens.
std::string meeting_address(const PerfOptions& options);

// Run as its results leave it, where it came to any. One of several runs does not write it
// anywhere.
using DocumentSink = std::function<void(Json document)>;

// The command's exit code. Notes and errors go to stderr. The CPUs that this thread may use are the
// same after it.
int run_perf(const PerfOptions& options, const DocumentSink& on_document = {});

}  // namespace sluice::tools
