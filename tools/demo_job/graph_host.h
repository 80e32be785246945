// What both kinds of process of mode graph have: a context, an exchange, the plan and its runner.
#ifndef SLUICE_TOOLS_DEMO_JOB_GRAPH_HOST_H_
#define SLUICE_TOOLS_DEMO_JOB_GRAPH_HOST_H_

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <sluice/graph/plan.h>
#include <sluice/graph/runner.h>
#include <sluice/sluice.h>

#include "tools/demo_job/control.h"
#include "tools/demo_job/graph_roles.h"
#include "tools/demo_job/job.h"
#include "tools/demo_job/model.h"
#include "tools/demo_job/parcels.h"

namespace sluice::tools::demo {

class GraphHost {
 public:
  GraphHost(const Visit& visit, ControlLine& line)
      : visit_(visit),
        line_(line),
        model_(spread_model(model_named(visit.model), visit.spreading)) {}

  // Makes the plan and everything that needs no peer. `kernels` outlives this.
  Status open(uint32_t process, graph::Kernels& kernels);
  const Model& model() const { return model_; }
  const graph::Plan& plan() const { return *plan_; }
  Context& context() { return *context_; }
  Exchange& exchange() { return *exchange_; }
  graph::Runner& runner() { return *runner_; }
  const std::string& op_of(uint32_t node) const { return plan_->graph.nodes[node].op; }
  // The tensor that an edge carries, by its place in the model.
  uint32_t tensor_of(uint32_t edge) const { return tensor_of_edge_[edge]; }
  Instant deadline() const { return after(now(), visit_.patience()); }

  // Waits for an order and refuses any but `word`.
  Status expect(Word word);
  // Copies, memory and receipts since the last report.
  void count(Message& report, const std::vector<const Endpoint*>& endpoints);
  // In the right order: the runner gives back what it holds first.
  void close(const std::vector<Endpoint*>& endpoints);

 private:
  const Visit& visit_;
  ControlLine& line_;
  Model model_;
  std::optional<graph::Plan> plan_;
  std::vector<uint32_t> tensor_of_edge_;
  std::unique_ptr<Context> context_;
  std::optional<Exchange> exchange_;
  std::optional<graph::Runner> runner_;
  OrderWatch orders_;
  uint64_t copied_before_ = 0, fetches_before_ = 0, views_before_ = 0;
};

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_GRAPH_HOST_H_
