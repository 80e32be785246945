// A plan in virtual time: a queue of events, one for each process that can go on.
#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <vector>

#include <sluice/graph/cost.h>

namespace sluice::graph {
namespace {

struct Host {
  std::vector<double> cores;  // when each is free
  double out_free = 0, in_free = 0;
  double out_busy_us = 0, in_busy_us = 0, core_busy_us = 0;
};

struct Event {
  double time = 0;
  uint64_t serial = 0;  // of equal times, in the order in which they were made
  uint32_t process = 0;
  bool operator>(const Event& other) const {
    return time != other.time ? time > other.time : serial > other.serial;
  }
};

struct Way {
  uint64_t posts = 0, arrivals = 0;
  std::vector<double> posted_at;   // by step
  std::vector<double> arrives_at;  // by step; filled when asked for and published
  bool waited = false;             // its process waits for it
};

class VirtualRun {
 public:
  VirtualRun(const Plan& plan, const Costs& costs, uint32_t steps)
      : plan_(plan),
        costs_(costs),
        steps_(steps),
        ways_(plan.deliveries.size()),
        ways_of_(plan.graph.edges.size()),
        published_(plan.graph.edges.size()),
        held_(plan.slots.size()),
        claimer_(plan.slots.size(), kNone),
        tenant_(plan.slots.size(), kNone),
        clocks_(plan.processes.size()),
        hosts_of_(plan.processes.size()) {
    std::map<std::string, uint32_t> names;
    for (uint32_t p = 0; p < plan.processes.size(); ++p) {
      const auto [at, fresh] =
          names.emplace(plan.graph.processes[p].host, static_cast<uint32_t>(hosts_.size()));
      if (fresh) {
        hosts_.emplace_back();
        hosts_.back().cores.resize(std::max(1u, costs.cores));
      }
      hosts_of_[p] = at->second;
    }
    for (uint32_t d = 0; d < plan.deliveries.size(); ++d)
      ways_of_[plan.deliveries[d].edge].push_back(d);
  }

  Result<Estimate> run() {
    for (uint32_t p = 0; p < clocks_.size(); ++p) wake(p, 0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      Clock& clock = clocks_[event.process];
      clock.waiting = false;
      clock.time = std::max(clock.time, event.time);
      turn(event.process);
    }
    double end_of_first = 0, end = 0;
    for (const Clock& clock : clocks_) {
      if (clock.step < steps_) {
        return Status(Code::kInvalidArgument, Scope::kOperation, "graph/estimate",
                      "the plan does not end: check it first");
      }
      end_of_first = std::max(end_of_first, clock.end_of_first);
      end = std::max(end, clock.time);
    }
    return result(end_of_first, end);
  }

 private:
  struct Clock {
    double time = 0;
    double end_of_first = 0;
    bool started = false, waiting = false;
    bool ran = false;  // the node at hand has had its time
    uint64_t step = 0;
    size_t next = 0;
  };

  Result<Estimate> result(double end_of_first, double end) const {
    Estimate found;
    found.first_step_us = end_of_first;
    found.step_us = (end - end_of_first) / (steps_ - 1);
    for (const Delivery& delivery : plan_.deliveries) {
      if (delivery.route == Route::kCross)
        found.moved_bytes += static_cast<double>(plan_.graph.edges[delivery.edge].bytes);
    }
    for (const Host& host : hosts_) {
      if (end <= 0) break;
      found.busiest_nic =
          std::max(found.busiest_nic, std::max(host.out_busy_us, host.in_busy_us) / end);
      found.busiest_host = std::max(
          found.busiest_host, host.core_busy_us / (end * static_cast<double>(host.cores.size())));
    }
    return found;
  }

  void wake(uint32_t p, double time) {
    events_.push({time, ++serial_, p});
    clocks_[p].waiting = true;
  }

  // Instructions of a process up to the next one that takes time or waits.
  void turn(uint32_t p) {
    Clock& clock = clocks_[p];
    while (clock.step < steps_ && !clock.waiting) {
      const ProcessPlan& process = plan_.processes[p];
      const std::vector<Instruction>& list = clock.started ? process.step : process.start;
      if (clock.next == list.size()) {
        if (clock.started && clock.step++ == 0) clock.end_of_first = clock.time;
        if (process.step.empty()) clock.step = steps_;
        clock.started = true;
        clock.next = 0;
        continue;
      }
      if (!carry_out(p, list[clock.next])) return;
      ++clock.next;
    }
  }

  uint64_t step_of(const Clock& clock, uint32_t edge) const {
    return clock.started ? clock.step + plan_.graph.edges[edge].delay : 0;
  }

  bool carry_out(uint32_t p, const Instruction& each) {
    Clock& clock = clocks_[p];
    switch (each.action) {
      case Action::kPost: {
        const uint32_t slot = plan_.deliveries[each.subject].slot;
        if (slot != kNone && !free(slot, p)) return false;
        if (slot != kNone) tenant_[slot] = kNone;
        ways_[each.subject].posted_at.push_back(clock.time);
        ++ways_[each.subject].posts;
        move(each.subject);
        return true;
      }
      case Action::kAwait: return await(p, each.subject);
      case Action::kClaim: {
        const std::vector<uint32_t>& slots = plan_.tensors[each.subject].slots;
        const uint32_t slot = slots[step_of(clock, each.subject) % slots.size()];
        if (!free(slot, p)) return false;
        tenant_[slot] = each.subject;
        held_[slot] = plan_.tensors[each.subject].fetches;
        return true;
      }
      case Action::kRun: return run_node(p, each.subject);
      case Action::kPublish:
        published_[each.subject].push_back(clock.time);
        for (uint32_t d : ways_of_[each.subject]) move(d);
        return true;
      case Action::kRelease: release(p, each.subject); return true;
    }
    return true;
  }

  // Readers of the last tenant in other processes; the claim waits for them.
  bool free(uint32_t slot, uint32_t p) {
    if (tenant_[slot] == kNone || held_[slot] == 0) return true;
    claimer_[slot] = p;
    return false;
  }

  void release(uint32_t p, uint32_t d) {
    const Delivery& delivery = plan_.deliveries[d];
    const std::vector<uint32_t>& slots = plan_.tensors[delivery.edge].slots;
    const uint32_t slot = slots[(ways_[d].arrivals - 1) % slots.size()];
    if (--held_[slot] != 0 || claimer_[slot] == kNone) return;
    const Line& line = delivery.route == Route::kView ? costs_.view : costs_.cross;
    wake(claimer_[slot], clocks_[p].time + line.latency_us);
    claimer_[slot] = kNone;
  }

  bool await(uint32_t p, uint32_t d) {
    Way& way = ways_[d];
    if (way.arrives_at.size() <= way.arrivals) {
      way.waited = true;
      return false;
    }
    const double here = way.arrives_at[way.arrivals];
    if (here > clocks_[p].time) {
      wake(p, here);
      return false;
    }
    ++way.arrivals;
    return true;
  }

  // Starts the transfer of the next tensor that is both asked for and published.
  void move(uint32_t d) {
    Way& way = ways_[d];
    const Delivery& delivery = plan_.deliveries[d];
    const uint64_t step = way.arrives_at.size();
    if (way.posts <= step || published_[delivery.edge].size() <= step) return;
    const uint64_t bytes = plan_.graph.edges[delivery.edge].bytes;
    const Line& line = delivery.route == Route::kView ? costs_.view : costs_.cross;
    // A request that comes late is itself on the way for a latency.
    const double ready =
        std::max(published_[delivery.edge][step], way.posted_at[step] + line.latency_us);
    double here = ready + line.time_us(bytes);
    if (delivery.route == Route::kCross) {
      const double rate = costs_.nic_bytes_per_us > 0 ? costs_.nic_bytes_per_us : line.bytes_per_us;
      const double on_line = rate > 0 ? static_cast<double>(bytes) / rate : 0;
      Host& from = hosts_[hosts_of_[plan_.process_of(delivery.edge)]];
      Host& to = hosts_[hosts_of_[delivery.process]];
      // The sender goes on to the next tensor also while the receiver is busy with another's.
      const double sent = std::max(ready, from.out_free);
      from.out_free = sent + on_line;
      const double received = std::max(sent, to.in_free);
      to.in_free = received + on_line;
      from.out_busy_us += on_line;
      to.in_busy_us += on_line;
      here = std::max(received + line.time_us(bytes), received + on_line + line.latency_us);
    }
    way.arrives_at.push_back(here);
    if (!way.waited) return;
    way.waited = false;
    wake(delivery.process, here);
  }

  bool run_node(uint32_t p, uint32_t n) {
    Clock& clock = clocks_[p];
    if (clock.ran) {
      clock.ran = false;
      return true;
    }
    const Node& node = plan_.graph.nodes[n];
    const double time = node.compute_us + costs_.node_us +
                        (node.touched_bytes > 0 ? costs_.memory.time_us(node.touched_bytes) : 0);
    Host& host = hosts_[hosts_of_[p]];
    auto core = std::min_element(host.cores.begin(), host.cores.end());
    const double begin = std::max(clock.time, *core);
    *core = begin + time;
    host.core_busy_us += time;
    clock.ran = true;
    wake(p, begin + time);
    return false;
  }

  const Plan& plan_;
  const Costs& costs_;
  const uint32_t steps_;
  std::vector<Way> ways_;
  std::vector<std::vector<uint32_t>> ways_of_;     // by edge
  std::vector<std::vector<double>> published_;     // by edge, then step: when
  std::vector<uint32_t> held_, claimer_, tenant_;  // by slot
  std::vector<Clock> clocks_;
  std::vector<uint32_t> hosts_of_;
  std::vector<Host> hosts_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t serial_ = 0;
};

}  // namespace

Result<Estimate> estimate(const Plan& plan, const Costs& costs, uint32_t steps) {
  if (steps < 2) {
    return Status(Code::kInvalidArgument, Scope::kOperation, "graph/estimate",
                  "an estimate takes 2 steps at least");
  }
  return VirtualRun(plan, costs, steps).run();
}

}  // namespace sluice::graph
