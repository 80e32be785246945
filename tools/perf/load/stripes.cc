#include "tools/perf/load/stripes.h"

#include <algorithm>
#include <utility>

namespace sluice::tools {

Stripes::~Stripes() {
  close_others();
  drop();
}

void Stripes::add(Endpoint&& endpoint) {
  others_.push_back(std::make_unique<Endpoint>(std::move(endpoint)));
  endpoints_.push_back(others_.back().get());
  workloads_.emplace_back();
}

Workload& Stripes::make(size_t i, const Load& load) {
  if (i == 0) drop();
  workloads_[i] = make_workload({context_, *endpoints_[i], control_, role_}, load);
  return *workloads_[i];
}

bool Stripes::complete() const {
  return std::all_of(workloads_.begin(), workloads_.end(),
                     [](const auto& workload) { return workload != nullptr; });
}

void Stripes::drop() {
  for (auto& workload : workloads_) workload.reset();
}

Status Stripes::arm(const Round& round) {
  for (size_t i = 0; i < size(); ++i)
    SLUICE_RETURN_IF_ERROR(workloads_[i]->arm(round.share(i, size())));
  return Status();
}

Status Stripes::run(const Round& round, Samples* samples) {
  // A side that is worked on does nothing but progress, which serves all connections.
  if (size() == 1 || first().steps() == nullptr)
    return first().run(round.share(0, size()), samples);
  std::vector<Steps*> all;
  for (size_t i = 0; i < size(); ++i) {
    all.push_back(workloads_[i]->steps());
    all[i]->begin(round.share(i, size()), samples);
  }
  Side side{context_, *endpoints_[0], control_, role_};
  return Steps::run_together(side, all);
}

void Stripes::inspect(const Round& round) {
  for (size_t i = 0; i < size(); ++i) workloads_[i]->inspect(round.share(i, size()));
}

Verdict Stripes::verdict() const {
  Verdict sum;
  for (const auto& workload : workloads_) {
    sum.verified_bytes += workload->verdict().verified_bytes;
    sum.mismatched_bytes += workload->verdict().mismatched_bytes;
  }
  return sum;
}

Copies Stripes::payload_copies() const {
  Copies sum;
  for (const Endpoint* endpoint : endpoints_) {
    EndpointCounters counters = endpoint->counters();
    sum += {counters.copied_bytes, counters.kernel_copied_bytes};
  }
  return sum - control_.copies();
}

std::vector<uint64_t> Stripes::bytes_carried() const {
  std::vector<uint64_t> bytes;
  for (const Endpoint* endpoint : endpoints_)
    bytes.push_back(endpoint->counters().bytes_sent + endpoint->counters().bytes_received);
  return bytes;
}

void Stripes::close_others() {
  // Ends every operation before what it refers to. The peer may have closed first.
  for (auto& endpoint : others_) {
    if (*endpoint) (void)endpoint->close(after(sluice::now(), std::chrono::seconds(5)));
  }
}

}  // namespace sluice::tools
