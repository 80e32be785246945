#include <sluice/graph/check.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace sluice::graph {
namespace {

// A tensor of one step: of the one that reads it.
struct Instance {
  uint32_t edge = kNone;
  uint64_t step = 0;
  bool operator==(const Instance&) const = default;
};

struct SlotState {
  Instance tenant;
  bool written = false;      // claimed, and its node has run
  uint32_t local_left = 0;   // readers in the process of the slot that have not run
  uint32_t remote_left = 0;  // deliveries that have not released it, from its publication on
  bool published = false;
};

struct DeliveryState {
  uint64_t posts = 0;     // how many times it was asked for: the next one is of that step
  uint64_t arrivals = 0;  // of these it has awaited so many
  bool held = false;      // awaited and not released
};

class Checker {
 public:
  explicit Checker(const Plan& plan)
      : plan_(plan),
        slots_(plan.slots.size()),
        deliveries_(plan.deliveries.size()),
        published_(plan.graph.edges.size()),
        ran_(plan.graph.nodes.size()) {}

  std::string run() {
    if (std::string why = check_shape(); !why.empty()) return why;
    index();
    uint64_t turns = 1;
    for (const TensorPlan& tensor : plan_.tensors)
      turns = std::max<uint64_t>(turns, tensor.slots.size());
    steps_ = 2 * turns + 2;
    if (steps_ > kMostSteps) return "a tensor has more slots than can be checked";
    at_.assign(plan_.processes.size(), Cursor{});
    for (bool moved = true; moved;) {
      moved = false;
      for (uint32_t p = 0; p < plan_.processes.size(); ++p) {
        while (advance(p)) moved = true;
        if (!problem_.empty()) return problem_;
      }
    }
    for (uint32_t p = 0; p < plan_.processes.size(); ++p) {
      if (at_[p].step < steps_) return stuck(p);
    }
    return {};
  }

 private:
  static constexpr uint64_t kMostSteps = 64;
  struct Cursor {
    bool started = false;  // `start` is done
    uint64_t step = 0;
    size_t next = 0;
  };

  const std::string& name(uint32_t edge) const { return plan_.graph.edges[edge].name; }
  std::string tensor(const Instance& instance) const {
    return "'" + name(instance.edge) + "' of step " + std::to_string(instance.step);
  }
  bool fail(std::string why) {
    if (problem_.empty()) problem_ = std::move(why);
    return false;
  }

  // Numbers that point somewhere, sizes that suffice, and every reader in another process served.
  std::string check_shape() const {
    const Graph& graph = plan_.graph;
    if (plan_.tensors.size() != graph.edges.size() ||
        plan_.processes.size() != graph.processes.size())
      return "the plan is not of this graph";
    for (const Slot& slot : plan_.slots) {
      if (slot.process >= graph.processes.size()) return "a slot belongs to no process";
    }
    for (uint32_t e = 0; e < graph.edges.size(); ++e) {
      if (std::string why = check_tensor(e); !why.empty()) return why;
    }
    std::set<std::pair<uint32_t, uint32_t>> ways;
    for (const Delivery& delivery : plan_.deliveries) {
      if (std::string why = check_delivery(delivery); !why.empty()) return why;
      if (!ways.insert({delivery.edge, delivery.process}).second)
        return "'" + name(delivery.edge) + "' goes to a process twice";
    }
    for (const ProcessPlan& process : plan_.processes) {
      for (const std::vector<Instruction>* list : {&process.start, &process.step}) {
        for (const Instruction& each : *list) {
          const bool of_edge = each.action == Action::kClaim || each.action == Action::kPublish;
          const size_t size = each.action == Action::kRun ? graph.nodes.size()
                              : of_edge                   ? graph.edges.size()
                                                          : plan_.deliveries.size();
          if (each.subject >= size) return "an instruction names what is not there";
          if (of_edge && graph.edges[each.subject].control)
            return "an instruction moves '" + name(each.subject) + "', which has no tensor";
        }
      }
    }
    return {};
  }

  std::string check_tensor(uint32_t e) const {
    const Edge& edge = plan_.graph.edges[e];
    const TensorPlan& tensor = plan_.tensors[e];
    if (!edge.control && tensor.slots.empty()) return "'" + name(e) + "' has no slot";
    for (uint32_t slot : tensor.slots) {
      if (slot >= plan_.slots.size()) return "'" + name(e) + "' has a slot that is not there";
      if (plan_.slots[slot].process != plan_.process_of(e))
        return "'" + name(e) + "' is born in the memory of another process";
      if (plan_.slots[slot].bytes < edge.bytes) return "'" + name(e) + "' is larger than its slot";
    }
    if (tensor.fetches != remote_readers(e, plan_.process_of(e)))
      return "'" + name(e) + "' counts " + std::to_string(tensor.fetches) +
             " other processes that read it, which is wrong";
    if (tensor.in_place_of == kNone) return {};
    if (tensor.in_place_of >= plan_.graph.edges.size())
      return "'" + name(e) + "' is in place of what is not there";
    if (edge.control || plan_.graph.edges[tensor.in_place_of].control)
      return "'" + name(e) + "' is in place of what has no tensor, or has none itself";
    if (!plan_.graph.nodes[edge.from].in_place)
      return "'" + name(e) + "' is in place of an input, which its node does not allow";
    return {};
  }

  std::string check_delivery(const Delivery& delivery) const {
    const Graph& graph = plan_.graph;
    if (delivery.edge >= graph.edges.size() || delivery.process >= graph.processes.size())
      return "a delivery names what is not there";
    if (graph.edges[delivery.edge].control)
      return "'" + name(delivery.edge) + "' is delivered, and has no tensor";
    const std::string who =
        "'" + name(delivery.edge) + "' to '" + graph.processes[delivery.process].name + "'";
    const uint32_t home = plan_.process_of(delivery.edge);
    const bool same = graph.processes[home].host == graph.processes[delivery.process].host;
    if (delivery.process == home) return who + " does not leave its process";
    if (delivery.route == Route::kView && !same) return who + " is a view of another host's memory";
    if (delivery.route == Route::kLocal) return who + " leaves its process and is called local";
    if (delivery.route == Route::kView) {
      for (uint32_t slot : plan_.tensors[delivery.edge].slots) {
        if (plan_.slots[slot].audience == Audience::kNobody)
          return who + " is a view of memory that may not be mapped";
      }
      return {};
    }
    if (delivery.slot >= plan_.slots.size()) return who + " has no destination";
    if (plan_.slots[delivery.slot].process != delivery.process)
      return who + " has a destination in another process";
    if (plan_.slots[delivery.slot].bytes < graph.edges[delivery.edge].bytes)
      return who + " is larger than its destination";
    return {};
  }

  void index() {
    const Graph& graph = plan_.graph;
    inputs_.resize(graph.nodes.size());
    outputs_.resize(graph.nodes.size());
    before_.resize(graph.nodes.size());
    for (uint32_t e = 0; e < graph.edges.size(); ++e) {
      const Edge& edge = graph.edges[e];
      if (!edge.control) outputs_[edge.from].push_back(e);
      for (uint32_t reader : edge.to) (edge.control ? before_ : inputs_)[reader].push_back(e);
    }
    for (uint32_t d = 0; d < plan_.deliveries.size(); ++d) {
      const Delivery& delivery = plan_.deliveries[d];
      delivery_of_[{delivery.edge, delivery.process}] = d;
    }
  }

  const std::vector<Instruction>& list_of(uint32_t p) const {
    return at_[p].started ? plan_.processes[p].step : plan_.processes[p].start;
  }

  // One instruction. False: it waits, is at the end, or something is wrong.
  bool advance(uint32_t p) {
    Cursor& at = at_[p];
    if (!problem_.empty() || at.step >= steps_) return false;
    if (at.next >= list_of(p).size()) {
      if (at.started && !end_of_step(p)) return false;
      if (at.started) ++at.step;
      at.started = true;
      at.next = 0;
      // A process without instructions is at the end of all steps at once.
      if (plan_.processes[p].step.empty()) {
        for (const Node& node : plan_.graph.nodes) {
          if (node.process == p) return fail("node '" + node.name + "' never runs");
        }
        at.step = steps_;
      }
      return true;
    }
    const Instruction& each = list_of(p)[at.next];
    if (!carry_out(p, each)) return false;
    ++at.next;
    return true;
  }

  bool end_of_step(uint32_t p) {
    for (uint32_t n = 0; n < plan_.graph.nodes.size(); ++n) {
      if (plan_.graph.nodes[n].process == p && ran_[n] != at_[p].step + 1)
        return fail("node '" + plan_.graph.nodes[n].name + "' does not run once in each step");
    }
    return true;
  }

  bool carry_out(uint32_t p, const Instruction& each) {
    switch (each.action) {
      case Action::kPost: return post(p, each.subject);
      case Action::kAwait: return await(p, each.subject);
      case Action::kClaim: return claim(p, each.subject);
      case Action::kRun: return run_node(p, each.subject);
      case Action::kPublish: return publish(p, each.subject);
      case Action::kRelease: return release(p, each.subject);
    }
    return fail("an instruction that is not known");
  }

  SlotState& slot_of(const Instance& instance) {
    const std::vector<uint32_t>& slots = plan_.tensors[instance.edge].slots;
    return slots_[slots[instance.step % slots.size()]];
  }

  // What is made now is read in this step, by delay in the next; before step 0 it is for step 0.
  Instance made_now(uint32_t p, uint32_t edge) const {
    return {edge, at_[p].started ? at_[p].step + plan_.graph.edges[edge].delay : 0};
  }

  // Whether the tenant has readers left, but for `except` (a node that overwrites what it reads).
  bool takes_slot(SlotState& slot, const Instance& next, bool in_place) {
    if (slot.tenant.edge == kNone) return true;
    if (slot.tenant == next) return fail(tensor(next) + " is made twice");
    if (slot.local_left > (in_place ? 1u : 0u)) {
      return fail(tensor(next) + " is written over " + tensor(slot.tenant) +
                  ", which has readers left in its process");
    }
    if (slot.remote_left > 0 && !slot.published)
      return fail(tensor(next) + " is written over " + tensor(slot.tenant) +
                  ", which was never published");
    return true;
  }

  bool claim(uint32_t p, uint32_t edge) {
    if (plan_.process_of(edge) != p) return fail("'" + name(edge) + "' is claimed elsewhere");
    const Instance next = made_now(p, edge);
    SlotState& slot = slot_of(next);
    const uint32_t input = plan_.tensors[edge].in_place_of;
    bool in_place = false;
    if (at_[p].started && input != kNone) {
      const std::vector<uint32_t>& to = plan_.graph.edges[input].to;
      const uint32_t node = plan_.graph.edges[edge].from;
      in_place = slot.tenant == Instance{input, at_[p].step} &&
                 std::find(to.begin(), to.end(), node) != to.end();
      if (!in_place) return fail(tensor(next) + " is to be in place of what is not there");
      overwritten_[node].push_back(input);
    }
    if (!takes_slot(slot, next, in_place)) return false;
    if (slot.remote_left > 0) return false;  // waits
    occupy(slot, next, p);
    slot.written = !at_[p].started;
    return true;
  }

  void occupy(SlotState& slot, const Instance& tenant, uint32_t p) {
    slot = SlotState{.tenant = tenant};
    for (uint32_t reader : plan_.graph.edges[tenant.edge].to)
      slot.local_left += plan_.graph.nodes[reader].process == p;
    if (plan_.process_of(tenant.edge) == p) slot.remote_left = remote_readers(tenant.edge, p);
  }

  uint32_t remote_readers(uint32_t edge, uint32_t home) const {
    std::vector<uint32_t> processes;
    for (uint32_t reader : plan_.graph.edges[edge].to) {
      const uint32_t process = plan_.graph.nodes[reader].process;
      if (process != home) processes.push_back(process);
    }
    std::sort(processes.begin(), processes.end());
    return static_cast<uint32_t>(std::unique(processes.begin(), processes.end()) -
                                 processes.begin());
  }

  bool post(uint32_t p, uint32_t d) {
    const Delivery& delivery = plan_.deliveries[d];
    if (delivery.process != p) return fail("'" + name(delivery.edge) + "' is asked for elsewhere");
    DeliveryState& state = deliveries_[d];
    if (state.posts != state.arrivals)
      return fail("'" + name(delivery.edge) + "' is asked for twice");
    if (state.held) return fail("'" + name(delivery.edge) + "' is asked for before it is released");
    if (delivery.route == Route::kCross) {
      SlotState& slot = slots_[delivery.slot];
      const Instance next{delivery.edge, state.posts};
      if (!takes_slot(slot, next, false)) return false;
      if (slot.remote_left > 0) return false;  // waits
      occupy(slot, next, p);
    }
    ++state.posts;
    return true;
  }

  bool await(uint32_t p, uint32_t d) {
    const Delivery& delivery = plan_.deliveries[d];
    DeliveryState& state = deliveries_[d];
    if (delivery.process != p) return fail("'" + name(delivery.edge) + "' is awaited elsewhere");
    if (state.posts == state.arrivals)
      return fail("'" + name(delivery.edge) + "' is awaited and was not asked for");
    const uint64_t step = state.arrivals;
    if (published_[delivery.edge] <= step) return false;  // waits
    const Instance wanted{delivery.edge, step};
    if (slot_of(wanted).tenant != wanted)
      return fail(tensor(wanted) + " was overwritten before it was fetched");
    if (delivery.route == Route::kCross) {
      if (slots_[delivery.slot].tenant != wanted)
        return fail("the destination of " + tensor(wanted) + " was overwritten");
      slots_[delivery.slot].written = true;
    }
    ++state.arrivals;
    state.held = true;
    return true;
  }

  bool run_node(uint32_t p, uint32_t n) {
    const Node& node = plan_.graph.nodes[n];
    if (node.process != p) return fail("node '" + node.name + "' runs elsewhere");
    if (!at_[p].started || ran_[n] != at_[p].step)
      return fail("node '" + node.name + "' does not run once in each step");
    for (uint32_t e : before_[n]) {
      if (ran_[plan_.graph.edges[e].from] != at_[p].step + 1)
        return fail("node '" + node.name + "' runs before '" +
                    plan_.graph.nodes[plan_.graph.edges[e].from].name + "'");
    }
    for (uint32_t e : inputs_[n]) {
      if (!read(p, n, {e, at_[p].step})) return false;
    }
    for (uint32_t e : outputs_[n]) {
      SlotState& slot = slot_of(made_now(p, e));
      if (slot.tenant != made_now(p, e))
        return fail("node '" + node.name + "' writes " + tensor(made_now(p, e)) +
                    " where it has claimed nothing");
      slot.written = true;
    }
    overwritten_.erase(n);
    ++ran_[n];
    return true;
  }

  bool read(uint32_t p, uint32_t n, const Instance& wanted) {
    const uint32_t home = plan_.process_of(wanted.edge);
    if (home == p) {
      const auto gone = overwritten_.find(n);
      if (gone != overwritten_.end() &&
          std::find(gone->second.begin(), gone->second.end(), wanted.edge) != gone->second.end())
        return true;  // it is its own output's memory now, and written as it is read
      SlotState& slot = slot_of(wanted);
      if (slot.tenant != wanted || !slot.written) return missing(n, wanted);
      --slot.local_left;
      return true;
    }
    const auto found = delivery_of_.find({wanted.edge, p});
    if (found == delivery_of_.end()) return missing(n, wanted);
    const DeliveryState& state = deliveries_[found->second];
    const Delivery& delivery = plan_.deliveries[found->second];
    if (!state.held || state.arrivals != wanted.step + 1) return missing(n, wanted);
    SlotState& slot = delivery.route == Route::kCross ? slots_[delivery.slot] : slot_of(wanted);
    if (slot.tenant != wanted || !slot.written) return missing(n, wanted);
    if (delivery.route == Route::kCross) --slot.local_left;
    return true;
  }

  bool missing(uint32_t n, const Instance& wanted) {
    return fail("node '" + plan_.graph.nodes[n].name + "' reads " + tensor(wanted) +
                ", which is not there");
  }

  bool publish(uint32_t p, uint32_t edge) {
    const Instance made = made_now(p, edge);
    SlotState& slot = slot_of(made);
    if (plan_.process_of(edge) != p || slot.tenant != made || !slot.written)
      return fail(tensor(made) + " is published and was not made");
    if (published_[edge] != made.step) return fail(tensor(made) + " is published out of turn");
    slot.published = true;
    ++published_[edge];
    return true;
  }

  bool release(uint32_t p, uint32_t d) {
    const Delivery& delivery = plan_.deliveries[d];
    DeliveryState& state = deliveries_[d];
    const Instance held{delivery.edge, state.arrivals - 1};
    if (delivery.process != p || !state.held)
      return fail("'" + name(delivery.edge) + "' is released and was not held");
    for (uint32_t reader : plan_.graph.edges[delivery.edge].to) {
      if (plan_.graph.nodes[reader].process == p && ran_[reader] <= held.step)
        return fail(tensor(held) + " is released before '" + plan_.graph.nodes[reader].name +
                    "' has read it");
    }
    state.held = false;
    SlotState& source = slot_of(held);
    if (source.tenant != held || source.remote_left == 0)
      return fail(tensor(held) + " was overwritten while it was read");
    --source.remote_left;
    return true;
  }

  std::string stuck(uint32_t p) const {
    const Cursor& at = at_[p];
    const Instruction& each = list_of(p)[at.next];
    const bool of_edge = each.action == Action::kClaim || each.action == Action::kPublish;
    const std::string subject =
        each.action == Action::kRun
            ? plan_.graph.nodes[each.subject].name
            : name(of_edge ? each.subject : plan_.deliveries[each.subject].edge);
    return "process '" + plan_.graph.processes[p].name + "' waits for ever in step " +
           std::to_string(at.step) + ": " + std::string(to_string(each.action)) + " of '" +
           subject + "'";
  }

  const Plan& plan_;
  std::vector<SlotState> slots_;
  std::vector<DeliveryState> deliveries_;
  std::vector<uint64_t> published_;  // by edge: how many steps' tensors
  std::vector<uint64_t> ran_;        // by node: how many times
  std::vector<Cursor> at_;
  std::vector<std::vector<uint32_t>> inputs_, outputs_, before_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> delivery_of_;
  std::map<uint32_t, std::vector<uint32_t>> overwritten_;  // by node: inputs, until it has run
  uint64_t steps_ = 0;
  std::string problem_;
};

}  // namespace

std::string problem_of(const Plan& plan) { return Checker(plan).run(); }

}  // namespace sluice::graph
