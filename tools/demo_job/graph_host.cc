#include "tools/demo_job/graph_host.h"

#include <sluice/graph/check.h>
#include <sluice/graph/pass.h>

#include "tools/demo_job/exchange_link.h"
#include "tools/graph/job_graph.h"

namespace sluice::tools::demo {

Result<graph::Plan> plan_of(const Visit& visit, const Model& model) {
  const Placement placement = place_tensors(model, visit.spreading.servers);
  std::vector<networks::JobTensor> tensors;
  for (size_t t = 0; t < model.tensors.size(); ++t) {
    tensors.push_back({model.tensors[t].name,
                       {static_cast<int64_t>(model.tensors[t].elements)},
                       placement.places[t].server});
  }
  networks::JobShape shape;
  shape.workers = static_cast<uint32_t>(visit.workers);
  shape.servers = visit.spreading.servers;
  shape.one_host = visit.route == Route::kShm;
  shape.verify = true;
  SLUICE_TRY(sluice::graph::Plan plan,
             sluice::graph::make_plan(networks::job_graph(tensors, shape)));
  const std::string problem = sluice::graph::problem_of(plan);
  if (problem.empty()) return plan;
  return Status(Code::kInternal, Scope::kContext, "demo/graph", "the plan is wrong: " + problem);
}

Status GraphHost::open(uint32_t process, sluice::graph::Kernels& kernels) {
  SLUICE_TRY(plan_, plan_of(visit_, model_));
  std::unordered_map<std::string, uint32_t> tensors;
  for (uint32_t t = 0; t < model_.tensors.size(); ++t) tensors.emplace(model_.tensors[t].name, t);
  for (const sluice::graph::Edge& edge : plan_->graph.edges) {
    // "weights/fc6/weight", "gradients/0/fc6/weight": the tensor's name is the end.
    uint32_t tensor = 0;
    for (size_t at = edge.name.find('/'); at != std::string::npos;
         at = edge.name.find('/', at + 1)) {
      const auto found = tensors.find(edge.name.substr(at + 1));
      if (found == tensors.end()) continue;
      tensor = found->second;
      break;
    }
    tensor_of_edge_.push_back(tensor);
  }
  SLUICE_TRY(context_, open_context());
  exchange_.emplace(*context_);
  runner_.emplace(*context_, *exchange_, *plan_, process, kernels,
                  sluice::graph::RunnerOptions{.patience = visit_.patience()});
  return runner_->prepare();
}

Status GraphHost::expect(Word word) {
  SLUICE_TRY(Message order, orders_.wait(*context_, line_, deadline(), {}));
  if (order.word == word) return Status();
  return Status(Code::kInternal, Scope::kContext, "demo/graph", "an order out of turn");
}

void GraphHost::count(Message& report, const std::vector<const Endpoint*>& endpoints) {
  uint64_t copied = 0, fetches = 0, views = 0;
  for (const Endpoint* endpoint : endpoints) {
    const EndpointCounters counters = endpoint->counters();
    copied += counters.copied_bytes + counters.kernel_copied_bytes;
  }
  for (const sluice::graph::Traffic& traffic : runner_->traffic()) {
    fetches += traffic.tensors;
    views += traffic.views;
  }
  report.copied_bytes = copied - std::exchange(copied_before_, copied);
  report.fetches = fetches - std::exchange(fetches_before_, fetches);
  report.views = views - std::exchange(views_before_, views);
  report.arena_bytes = context_->arena().statistics().peak_used_bytes;
}

void GraphHost::close(const std::vector<Endpoint*>& endpoints) {
  (void)runner_->finish();
  for (Endpoint* endpoint : endpoints) (void)endpoint->close(after(now(), kCloseTime));
  runner_.reset();
  exchange_.reset();
  (void)context_->close(after(now(), kCloseTime));
}

}  // namespace sluice::tools::demo
