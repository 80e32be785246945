#include "tools/perf/flags/plan.h"

#include <algorithm>

#include "tools/perf/load/checksum.h"
#include "tools/perf/load/pattern.h"

namespace sluice::tools {
namespace {

// perftest's default (its -t).
constexpr uint32_t kDefaultDepth = 128;
// Over l2 and kmod a peer may have 64 windows, of which a fetch into memory takes one.
constexpr uint32_t kDefaultFetches = 32;

}  // namespace

const TestKind* find_test(std::string_view name) {
  for (const TestKind& test : kTests) {
    if (test.name == name) return &test;
  }
  return nullptr;
}

bool is_local(const TestKind& test) {
  return test.verb == Verb::kRegister || test.verb == Verb::kCopy;
}

std::string_view companion_of(const TestKind& test) {
  return test.verb == Verb::kRegister ? "deregister"
         : test.verb == Verb::kCopy   ? "past_caches"
                                      : "";
}

bool is_of_perftest(const TestKind& test) {
  return test.verb == Verb::kSend || test.verb == Verb::kWrite || test.verb == Verb::kRead ||
         test.verb == Verb::kAtomic;
}

bool can_be_striped(const TestKind& test) {
  return !test.latency && test.verb != Verb::kExchange && !is_local(test);
}

bool is_ping_pong(const TestKind& test) {
  return test.latency &&
         (test.verb == Verb::kSend || test.verb == Verb::kWrite || test.verb == Verb::kExchange);
}

bool can_be_bidirectional(const TestKind& test) {
  return !test.latency &&
         (test.verb == Verb::kSend || test.verb == Verb::kWrite || test.verb == Verb::kRead);
}

bool has_default_options(const TestKind& test) {
  return test.latency && (test.verb == Verb::kSend || test.verb == Verb::kExchange);
}

bool may_be_empty(const TestKind& test) {
  return (test.verb == Verb::kSend && test.latency) || test.verb == Verb::kRpc;
}

Load make_load(const TestKind& test, uint64_t size_bytes, uint32_t tx_depth, uint32_t qps,
               std::optional<uint64_t> reply_bytes) {
  Load load;
  load.test = &test;
  load.size_bytes = size_bytes;
  if (test.verb == Verb::kRpc) load.reply_bytes = reply_bytes.value_or(size_bytes);
  load.qps = qps;
  uint64_t room = std::max<uint64_t>(
      Load::kWindowBytes / std::max<uint64_t>(bytes_of_operation(load), 1) / qps, 1);
  const uint32_t usual = test.verb == Verb::kExchange ? kDefaultFetches : kDefaultDepth;
  uint32_t wanted = tx_depth > 0 ? tx_depth : usual;
  load.depth = test.latency ? 1 : static_cast<uint32_t>(std::min<uint64_t>(wanted, room));
  load.tensors = test.latency ? Load::kRotation : load.depth + 1;
  return load;
}

Load answers_of(const Load& load) {
  Load answers = load;
  answers.size_bytes = load.reply_bytes;
  answers.seed = mixed(~load.seed);  // a request that comes back is no answer
  return answers;
}

uint64_t bytes_of_operation(const Load& load) {
  return load.size_bytes + (load.test->verb == Verb::kRpc ? load.reply_bytes : 0);
}

uint64_t checked_bytes(const Load& load) {
  bool signalled = load.test->verb == Verb::kWrite && load.test->latency;
  return load.size_bytes - (signalled ? std::min<uint64_t>(load.size_bytes, sizeof(uint64_t)) : 0);
}

bool carries_checksum(const Load& load) {
  return load.checksum && checked_bytes(load) >= kLeastSealedBytes;
}

uint64_t memory_needed(const Load& load) {
  uint64_t buffers = load.depth;
  if (load.test->verb == Verb::kExchange) buffers = load.tensors + (load.into ? load.depth : 0);
  if (load.test->latency && load.test->verb != Verb::kExchange) buffers = 2;
  if (load.test->verb == Verb::kRpc || load.test->verb == Verb::kRegister) buffers = load.depth;
  if (load.test->verb == Verb::kCopy) buffers = 2;
  return buffers * bytes_of_operation(load) * load.qps * (load.bidirectional ? 2 : 1);
}

bool is_whole_address(std::string_view host) {
  return host.find("://") != std::string_view::npos || host.starts_with("shm:");
}

std::string_view to_string(Format format) {
  switch (format) {
    case Format::kText: return "text";
    case Format::kPerftest: return "perftest";
    case Format::kJson: return "json";
    case Format::kNdjson: return "ndjson";
    case Format::kCsv: return "csv";
    case Format::kOpenMetrics: return "openmetrics";
  }
  return "out of range";
}

std::string_view to_string(Waiting waiting) {
  switch (waiting) {
    case Waiting::kAdaptive: return "adaptive";
    case Waiting::kSpin: return "spin";
    case Waiting::kSleep: return "sleep";
  }
  return "out of range";
}

}  // namespace sluice::tools
