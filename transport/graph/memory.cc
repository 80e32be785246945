#include "transport/graph/memory.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include <sluice/base/checked.h>

namespace sluice::graph {
namespace {

// A slot that is being filled: the arcs of the circle of a step in which it is in use.
struct Filling {
  uint32_t slot = 0;
  uint64_t bytes = 0;
  Audience audience = Audience::kNobody;
  bool alone = false;
  std::vector<std::pair<uint64_t, uint64_t>> arcs;  // begin within a step, and length
};

bool overlap(std::pair<uint64_t, uint64_t> a, std::pair<uint64_t, uint64_t> b, uint64_t circle) {
  const uint64_t to_b = (b.first + circle - a.first) % circle;
  const uint64_t to_a = (a.first + circle - b.first) % circle;
  return to_b < a.second || to_a < b.second;
}

// Remainders of a slot that a smaller tensor leaves unused cost nothing more than they did.
bool fits(const Filling& filling, const Storage& storage, std::pair<uint64_t, uint64_t> arc,
          uint64_t circle) {
  if (filling.alone || filling.bytes < storage.bytes || filling.audience != storage.audience)
    return false;
  return std::none_of(filling.arcs.begin(), filling.arcs.end(),
                      [&](const auto& other) { return overlap(other, arc, circle); });
}

}  // namespace

MemoryPlanner::MemoryPlanner(Plan& plan, const Timeline& timeline, const PassOptions& options)
    : plan_(plan),
      timeline_(timeline),
      options_(options),
      inputs_(plan.graph.nodes.size()),
      outputs_(plan.graph.nodes.size()),
      made_in_(plan.graph.processes.size()),
      deliveries_of_(plan.graph.edges.size()),
      deliveries_to_(plan.graph.processes.size()),
      overwritten_by_(plan.graph.edges.size(), kNone) {
  for (uint32_t e = 0; e < plan.graph.edges.size(); ++e) {
    const Edge& edge = plan.graph.edges[e];
    if (edge.control) continue;
    outputs_[edge.from].push_back(e);
    made_in_[plan.process_of(e)].push_back(e);
    for (uint32_t reader : edge.to) inputs_[reader].push_back(e);
  }
  for (uint32_t d = 0; d < plan.deliveries.size(); ++d) {
    deliveries_of_[plan.deliveries[d].edge].push_back(d);
    deliveries_to_[plan.deliveries[d].process].push_back(d);
  }
}

Status MemoryPlanner::plan_process(uint32_t process) {
  for (uint32_t e : made_in_[process]) {
    plan_.tensors[e].slots.clear();
    plan_.tensors[e].in_place_of = kNone;
    overwritten_by_[e] = kNone;
  }
  if (options_.share_memory) decide_in_place(process);
  return assign(process, storages_of(process));
}

void MemoryPlanner::decide_in_place(uint32_t process) {
  for (uint32_t node : timeline_.order(process)) {
    if (!plan_.graph.nodes[node].in_place) continue;
    for (uint32_t output : outputs_[node]) {
      for (uint32_t input : inputs_[node]) {
        if (!may_overwrite(node, input, output)) continue;
        plan_.tensors[output].in_place_of = input;
        overwritten_by_[input] = output;
        break;
      }
    }
  }
}

bool MemoryPlanner::may_overwrite(uint32_t node, uint32_t input, uint32_t output) const {
  const Edge& in = plan_.graph.edges[input];
  if (in.bytes != plan_.graph.edges[output].bytes || overwritten_by_[input] != kNone) return false;
  if (plan_.process_of(input) != plan_.graph.nodes[node].process) return false;
  if (plan_.graph.nodes[in.from].device != plan_.graph.nodes[node].device) return false;
  return std::all_of(in.to.begin(), in.to.end(), [&](uint32_t reader) {
    return reader == node || timeline_.ends_before(reader, node);
  });
}

// The last position at which the tensor may be read, counted from the step that is `steps` before
// the one that reads it.
uint64_t MemoryPlanner::last_use(uint32_t edge, uint32_t steps) const {
  const uint32_t process = plan_.process_of(edge);
  const std::vector<uint32_t>& order = timeline_.order(process);
  const uint64_t first = uint64_t{steps} * order.size();
  uint64_t last = 0;
  for (uint32_t reader : plan_.graph.edges[edge].to) {
    if (plan_.graph.nodes[reader].process == process) {
      last = std::max(last, first + timeline_.position(reader));
      continue;
    }
    // The first node here that is sure to begin after the reader has ended; what a node knows, the
    // next ones know. If none is, the claim of the next step waits.
    const auto knows = std::partition_point(order.begin(), order.end(), [&](uint32_t node) {
      return !timeline_.ends_before(reader, node);
    });
    const uint64_t ended = first + static_cast<uint64_t>(knows - order.begin());
    if (ended > 0) last = std::max(last, ended - 1);
  }
  return last;
}

Storage MemoryPlanner::chain_from(uint32_t root) {
  Storage storage;
  storage.bytes = plan_.graph.edges[root].bytes;
  storage.begin = storage.end = timeline_.position(plan_.graph.edges[root].from);
  uint32_t steps = 0;
  for (uint32_t e = root;;) {
    steps += plan_.graph.edges[e].delay;
    storage.tensors.emplace_back(e, steps);
    storage.end = std::max(storage.end, last_use(e, steps));
    for (uint32_t d : deliveries_of_[e]) {
      if (plan_.deliveries[d].route == Route::kView) storage.audience = Audience::kSameUser;
    }
    e = overwritten_by_[e];
    if (e == kNone) break;
    if (e == root) {  // written over itself, step after step
      storage.alone = true;
      storage.versions = std::max(1u, steps);
      return storage;
    }
  }
  const uint64_t circle = timeline_.order(plan_.process_of(root)).size();
  const uint64_t length = storage.end - storage.begin + 1;
  storage.versions = static_cast<uint32_t>((length + circle - 1) / circle);
  storage.alone = storage.versions > 1 || !options_.share_memory;
  return storage;
}

Storage MemoryPlanner::destination(uint32_t delivery) const {
  const Delivery& d = plan_.deliveries[delivery];
  Storage storage;
  storage.bytes = plan_.graph.edges[d.edge].bytes;
  storage.begin = timeline_.position(d.first_reader);
  storage.end = timeline_.position(d.last_reader);
  storage.alone = d.ahead || !options_.share_memory;
  storage.delivery = delivery;
  return storage;
}

std::vector<Storage> MemoryPlanner::storages_of(uint32_t process) {
  std::vector<Storage> storages;
  std::vector<bool> seen(plan_.graph.edges.size());
  auto add = [&](uint32_t root) {
    storages.push_back(chain_from(root));
    for (const auto& [edge, steps] : storages.back().tensors) seen[edge] = true;
  };
  for (uint32_t e : made_in_[process]) {
    if (plan_.tensors[e].in_place_of == kNone) add(e);
  }
  // What is left is written over itself. It begins with what the program supplies before step 0.
  for (uint32_t e : made_in_[process]) {
    if (!seen[e] && plan_.graph.edges[e].delay > 0) add(e);
  }
  for (uint32_t d : deliveries_to_[process]) {
    if (plan_.deliveries[d].route == Route::kCross) storages.push_back(destination(d));
  }
  return storages;
}

Status MemoryPlanner::assign(uint32_t process, const std::vector<Storage>& storages) {
  const uint64_t circle = timeline_.order(process).size();
  std::vector<size_t> order(storages.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return storages[a].bytes > storages[b].bytes; });
  std::vector<Filling> fillings;
  std::optional<uint64_t> bytes = 0, unshared = 0;
  auto add_slot = [&](const Storage& storage) {
    plan_.slots.push_back({process, storage.bytes, storage.audience});
    if (bytes) bytes = checked_add(*bytes, storage.bytes);
    return static_cast<uint32_t>(plan_.slots.size() - 1);
  };
  for (size_t i : order) {
    const Storage& storage = storages[i];
    std::vector<uint32_t> slots;
    if (storage.alone) {
      for (uint32_t v = 0; v < storage.versions; ++v) slots.push_back(add_slot(storage));
    } else {
      const std::pair<uint64_t, uint64_t> arc{storage.begin % circle,
                                              storage.end - storage.begin + 1};
      auto found = std::find_if(fillings.begin(), fillings.end(), [&](const Filling& filling) {
        return fits(filling, storage, arc, circle);
      });
      if (found == fillings.end()) {
        fillings.push_back({add_slot(storage), storage.bytes, storage.audience, false, {}});
        found = fillings.end() - 1;
      }
      found->arcs.push_back(arc);
      slots.push_back(found->slot);
    }
    if (storage.delivery != kNone) plan_.deliveries[storage.delivery].slot = slots[0];
    for (const auto& [edge, steps] : storage.tensors) {
      // The tensor of step s began s - steps before.
      const size_t turn = (slots.size() - steps % slots.size()) % slots.size();
      plan_.tensors[edge].slots = slots;
      std::rotate(plan_.tensors[edge].slots.begin(),
                  plan_.tensors[edge].slots.begin() + static_cast<ptrdiff_t>(turn),
                  plan_.tensors[edge].slots.end());
    }
    if (storage.delivery != kNone && unshared) unshared = checked_add(*unshared, storage.bytes);
  }
  for (uint32_t e : made_in_[process]) {
    const Edge& edge = plan_.graph.edges[e];
    const uint64_t length =
        last_use(e, edge.delay) -
        std::min<uint64_t>(last_use(e, edge.delay), timeline_.position(edge.from)) + 1;
    const std::optional<uint64_t> own =
        checked_multiply(edge.bytes, (length + circle - 1) / circle);
    unshared = unshared && own ? checked_add(*unshared, *own) : std::nullopt;
  }
  if (!bytes || !unshared) {
    return Status(Code::kInvalidArgument, Scope::kOperation, "graph/pass",
                  "the tensors of process '" + plan_.graph.processes[process].name +
                      "' are together above 2^64 bytes: make them smaller, or spread them over "
                      "more processes");
  }
  plan_.processes[process].bytes = *bytes;
  plan_.processes[process].unshared_bytes = *unshared;
  return Status();
}

}  // namespace sluice::graph
