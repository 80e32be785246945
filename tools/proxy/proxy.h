// One proxy: a context, the sockets of programs in its event loop, and connections to other
// proxies. The side that listens for programs, and the side that reaches the service.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <sluice/base/clock.h>
#include <sluice/base/result.h>

#include "tools/proxy/totals.h"

namespace sluice::tools::proxy {

struct ProxyOptions {
  std::string listen, to;   // programs come to `listen`; the other proxy is at `to`
  std::string at, service;  // other proxies come to `at`; the service is at `service`
  std::string secret_file;
  uint64_t most_connections = 256;
  uint64_t window = uint64_t{1} << 20;
  uint64_t most_memory = uint64_t{1} << 30;
  double run_seconds = 0;    // 0: until a signal
  double grace_seconds = 2;  // for connections that are open at the end
  // Told what happens, one line at a time.
  std::function<void(const std::string&)> say;
};

struct Outcome {
  Totals totals;
  std::string path;  // of the last connection to another proxy; empty: there was none
};

// Bytes that `options` allow to wait in this process, both ways.
uint64_t memory_of(const ProxyOptions& options);

// Runs until a signal or the time is over. Blocks: until then. Errors: kInvalidArgument (an
// address), kWrongState (a place is in use), kUnreachable (an unknown host), kNoMemory.
Result<Outcome> run_client(const ProxyOptions& options);
Result<Outcome> run_server(const ProxyOptions& options);

}  // namespace sluice::tools::proxy
