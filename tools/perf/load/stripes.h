// The connections of one run on one side, and the workload on each: one, or several whose
// figures add up (--qps). Each has memory and steps of its own; one thread serves them all.
#pragma once

#include <memory>
#include <vector>

#include "tools/perf/load/workload.h"

namespace sluice::tools {

class Stripes {
 public:
  // The first connection carries the control channel, too. All outlive it.
  Stripes(Context& context, Endpoint& first, ControlChannel& control, Role role)
      : context_(context), control_(control), role_(role), workloads_(1) {
    endpoints_.push_back(&first);
  }
  ~Stripes();
  Stripes(const Stripes&) = delete;

  size_t size() const { return endpoints_.size(); }
  void add(Endpoint&& endpoint);
  // A new workload on connection `i`, in place of the one before; the first ends those of
  // all. Requires: i < size().
  Workload& make(size_t i, const Load& load);
  // All connections have one.
  bool complete() const;
  Workload& first() { return *workloads_[0]; }
  void drop();

  // As Workload's; each connection does its share of the round.
  Status arm(const Round& round);
  Status run(const Round& round, Samples* samples);
  void inspect(const Round& round);
  Verdict verdict() const;
  // Bytes that CPUs on this side have copied for payload so far.
  Copies payload_copies() const;
  // Bytes that each connection has carried so far, both ways.
  std::vector<uint64_t> bytes_carried() const;
  // All but the first, which is the caller's.
  void close_others();

 private:
  Context& context_;
  ControlChannel& control_;
  Role role_;
  std::vector<Endpoint*> endpoints_;
  std::vector<std::unique_ptr<Endpoint>> others_;
  std::vector<std::unique_ptr<Workload>> workloads_;
};

}  // namespace sluice::tools
