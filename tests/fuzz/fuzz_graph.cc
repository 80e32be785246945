// Graphs and tables of costs from text: what is refused says why; what is read is planned, the plan
// is accepted by the checker, and its text is read as the same graph.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <sluice/graph/check.h>
#include <sluice/graph/cost.h>
#include <sluice/graph/pass.h>
#include <sluice/graph/text.h>

#include "tests/fuzz/target.h"

namespace {

using namespace sluice::graph;

std::string problem_of_text(std::string_view text) {
  auto costs = read_costs(text);
  if (!costs.ok() && costs.status().detail().empty()) return "costs refused without a reason";
  auto graph = read_graph(text);
  if (!graph.ok()) {
    const bool told =
        graph.code() == sluice::Code::kInvalidArgument && !graph.status().detail().empty();
    return told ? "" : "refused without a reason";
  }
  const std::string written = to_json(*graph);
  auto again = read_graph(written);
  if (!again.ok() || to_json(*again) != written)
    return "what was written is read as something else";
  auto plan = make_plan(std::move(*graph));
  if (!plan.ok()) return plan.status().detail().empty() ? "not planned, without a reason" : "";
  if (std::string why = problem_of(*plan); !why.empty()) return "the plan is wrong: " + why;
  if (to_text(*plan, true).empty() || to_json(*plan).empty()) return "a plan without a text";
  return estimate(*plan, usual_costs(), 2).ok() ? "" : "a plan that does not end";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::fuzz::require_no(problem_of_text({reinterpret_cast<const char*>(data), size}));
  return 0;
}
