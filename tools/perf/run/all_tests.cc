#include "tools/perf/run/all_tests.h"

#include "tools/perf/load/registration.h"

namespace sluice::tools {
namespace {

bool path_has(const PerfOptions& o, const TestKind& test) {
  if (test.verb == Verb::kAtomic)
    return o.transport == "rdma" ||
           (o.transport == "auto" && !o.self);  // within a machine it is shared memory
  return test.verb != Verb::kRegister || registers_memory(o.transport);
}

void keep_what_one_process_has(PerfOptions& o) {
  o.host.clear();
  o.self = true;
  o.confidence.reset();
  o.most_runs.reset();
  o.interval.reset();
  o.under_load.reset();
  o.system_calls = false;
  o.pause_ns = 0;
  if (o.verify_by == "crc32c") o.verify_by.clear();
  if (o.test->verb == Verb::kCopy) {
    o.transport = "auto";
    o.bind = kAnyAddress;
  } else {
    if (o.verify_by != "false") o.verify_by.clear();
    o.source_offset.reset();
    o.destination_offset.reset();
  }
}

// Atomics have one size, at an address that is aligned.
void keep_what_atomics_have(PerfOptions& o) {
  o.sizes.clear();
  o.perturb_bytes = 0;
  o.source_offset.reset();
  o.destination_offset.reset();
  if (o.verify_by == "crc32c") o.verify_by.clear();
}

void keep_what_it_has(PerfOptions& o) {
  const TestKind& test = *o.test;
  if (test.verb != Verb::kExchange) {
    o.into = false;
    o.consume.clear();
  }
  if (!has_default_options(test)) o.default_options = false;
  if (test.verb != Verb::kExchange || !test.latency) o.tensors.reset();
  if (test.verb != Verb::kRpc) o.reply_bytes.reset();
  if (test.verb == Verb::kAtomic) keep_what_atomics_have(o);
  if (test.verb != Verb::kAtomic) o.atomic_type.clear();
  if (!can_be_bidirectional(test)) o.bidirectional = false;
  if (!can_be_striped(test)) o.qps = o.post_list = 1;
  if (!is_ping_pong(test)) o.cold = false;
  if (is_local(test)) keep_what_one_process_has(o);
  if (!test.latency) {
    o.under_load.reset();
    o.pause_ns = 0;
  }
  if (test.latency && !o.under_load) o.tx_depth = 0;
  if (o.pause_ns == 0) o.seed.reset();
}

}  // namespace

std::vector<PerfOptions> all_tests(const PerfOptions& options) {
  std::vector<PerfOptions> tests;
  unsigned met = 0;  // so many have a server
  for (const TestKind& test : kTests) {
    if (!path_has(options, test)) continue;
    PerfOptions each = options;
    each.test = &test;
    keep_what_it_has(each);
    if (!tests.empty()) each.unhonoured.clear();  // was told once
    if (!is_local(test)) ++met;
    tests.push_back(std::move(each));
  }
  for (PerfOptions& each : tests) {
    if (!is_local(*each.test)) each.runs_after = --met;
  }
  return tests;
}

}  // namespace sluice::tools
