#include <sluice/graph/runner.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sluice/base/tensor_descriptor.h>

namespace sluice::graph {
namespace {

constexpr const char* kOrigin = "graph/runner";

// Memory of the plan. Its bytes stay where they are; who may write them changes.
struct Held {
  Buffer buffer;                           // ours to write
  std::optional<Publication> publication;  // readers may have it
  Tensor returning;                        // its last loan may still be on the way
  std::byte* data = nullptr;
  uint64_t step = 0;  // that reads what was published last
  bool lost() const { return publication && publication->readers_lost() > 0; }
};

struct Incoming {
  std::optional<Fetch> view;
  std::optional<FetchInto> into;
  Tensor tensor;  // a view that is held
  uint64_t next_step = 0;
};

}  // namespace

class Runner::State {
 public:
  State(Context& context, Exchange& exchange, const Plan& plan, uint32_t process, Kernels& kernels,
        const RunnerOptions& options)
      : context_(context),
        exchange_(exchange),
        plan_(plan),
        process_(process),
        kernels_(kernels),
        options_(options),
        slots_(plan.slots.size()),
        incoming_(plan.deliveries.size()),
        traffic_(plan.deliveries.size()),
        endpoints_(plan.processes.size()) {
    index();
  }

  Status prepare() {
    for (const Node& node : plan_.graph.nodes) {
      if (node.process == process_ && node.device != "cpu") {
        return Status(Code::kUnsupported, Scope::kContext, kOrigin,
                      "node '" + node.name + "' is placed on " + node.device +
                          ", and this runner has memory of the host alone: place it on cpu");
      }
    }
    for (uint32_t s = 0; s < slots_.size(); ++s) {
      if (plan_.slots[s].process != process_) continue;
      SLUICE_TRY(slots_[s].buffer, context_.allocate({static_cast<int64_t>(plan_.slots[s].bytes)},
                                                     uint8, {plan_.slots[s].audience}));
      slots_[s].data = slots_[s].buffer.data();
    }
    for (const Instruction& each : plan_.processes[process_].start) {
      if (each.action != Action::kClaim) continue;
      SLUICE_RETURN_IF_ERROR(claim(each.subject, 0));
      SLUICE_RETURN_IF_ERROR(kernels_.supply(each.subject, memory_of(each.subject, 0)));
    }
    prepared_ = true;
    return Status();
  }

  void connect(uint32_t process, const Endpoint& endpoint) { endpoints_[process] = &endpoint; }

  Status start() {
    if (!prepared_ || started_ || finished_) {
      return Status(Code::kWrongState, Scope::kOperation, kOrigin,
                    "start() comes once, after prepare(); make another Runner to run again");
    }
    for (const Delivery& delivery : plan_.deliveries) {
      const uint32_t home = plan_.process_of(delivery.edge);
      if (delivery.process != process_ || endpoints_[home] != nullptr) continue;
      return Status(Code::kWrongState, Scope::kOperation, kOrigin,
                    "there is no endpoint to process '" + plan_.graph.processes[home].name +
                        "': connect() it before start()");
    }
    started_ = true;
    for (const Instruction& each : plan_.processes[process_].start) {
      Status done;
      if (each.action == Action::kPublish) done = publish(each.subject, 0);
      if (each.action == Action::kPost) done = post(each.subject);
      if (done.ok()) continue;
      failed_ = true;
      return done;
    }
    return Status();
  }

  Status run_step() {
    if (!started_ || failed_) {
      return Status(Code::kWrongState, Scope::kOperation, kOrigin,
                    "a step needs start(), and no failure before it; finish() this runner, and "
                    "make another to run again");
    }
    for (const Instruction& each : plan_.processes[process_].step) {
      const Status status = carry_out(each);
      if (status.ok()) continue;
      failed_ = true;
      return status;
    }
    ++step_;
    return Status();
  }

  Status finish() {
    for (Incoming& incoming : incoming_) {
      if (incoming.view) incoming.view->cancel();
      if (incoming.into) incoming.into->cancel();
      incoming.tensor = Tensor();
    }
    // What was released a moment ago goes out, also if nothing is awaited.
    (void)context_.progress();
    // What a step that is over here made may still be read elsewhere. What the next step would
    // read, nobody will; after a failure nobody waits.
    for (Held& slot : slots_) {
      if (slot.publication && (failed_ || slot.step >= step_)) slot.publication->retire();
    }
    const Status ended = context_.wait_until(
        [&] {
          const bool fetched = drop_incoming();
          return fetched && (failed_ || all_back());
        },
        from_now(options_.patience));
    started_ = false;
    finished_ = true;
    return ended;
  }

  uint64_t step() const { return step_; }
  std::span<const Traffic> traffic() const { return traffic_; }

 private:
  void index() {
    const Graph& graph = plan_.graph;
    inputs_.resize(graph.nodes.size());
    outputs_.resize(graph.nodes.size());
    for (uint32_t d = 0; d < plan_.deliveries.size(); ++d) {
      if (plan_.deliveries[d].process == process_) own_.emplace_back(plan_.deliveries[d].edge, d);
    }
    std::sort(own_.begin(), own_.end());
    for (uint32_t e = 0; e < graph.edges.size(); ++e) {
      const Edge& edge = graph.edges[e];
      if (edge.control) continue;
      if (graph.nodes[edge.from].process == process_) outputs_[edge.from].push_back(e);
      for (uint32_t reader : edge.to) {
        if (graph.nodes[reader].process == process_) inputs_[reader].push_back(e);
      }
    }
  }

  Status carry_out(const Instruction& each) {
    const uint32_t subject = each.subject;
    switch (each.action) {
      case Action::kPost: return post(subject);
      case Action::kAwait: return await(subject);
      case Action::kClaim: return claim(subject, step_ + plan_.graph.edges[subject].delay);
      case Action::kRun: return run_node(subject);
      case Action::kPublish: return publish(subject, step_ + plan_.graph.edges[subject].delay);
      case Action::kRelease: incoming_[subject].tensor = Tensor(); return Status();
    }
    return Status(Code::kInternal, Scope::kContext, kOrigin, "an instruction that is not known");
  }

  // An error with the tensor that it is about.
  Status about(const Status& status, uint32_t edge, uint64_t step, const std::string& what) const {
    return Status(
        status.code(), status.scope(), kOrigin,
        what + " '" + plan_.graph.edges[edge].name + "' of step " + std::to_string(step) +
            " in process '" + plan_.graph.processes[process_].name + "': " +
            std::string(status.detail().empty() ? to_string(status.code()) : status.detail()),
        status.os_error());
  }

  Held& slot_of(uint32_t edge, uint64_t step) {
    const std::vector<uint32_t>& slots = plan_.tensors[edge].slots;
    return slots_[slots[step % slots.size()]];
  }
  std::span<std::byte> memory_of(uint32_t edge, uint64_t step) {
    return {slot_of(edge, step).data, plan_.graph.edges[edge].bytes};
  }

  // True when the slot can be written again.
  static bool take_back(Held& slot) {
    if (slot.publication && slot.publication->ready()) {
      slot.returning = slot.publication->take();
      slot.publication.reset();
    }
    if (slot.returning) {
      if (std::optional<Buffer> buffer = slot.returning.try_thaw()) {
        slot.buffer = std::move(*buffer);
        slot.returning = Tensor();
      }
    }
    return static_cast<bool>(slot.buffer);
  }

  // The slot is ours to write, as a tensor of that edge. What lies in it stays: it may be written
  // in place.
  Status take(Held& slot, uint32_t edge, uint64_t step) {
    if (!take_back(slot)) {
      const Status waited = context_.wait_until([&] { return slot.lost() || take_back(slot); },
                                                from_now(options_.patience));
      if (!waited.ok()) return about(waited, edge, step, "no memory came back for");
      if (slot.lost()) {
        return about(Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                            "a process that reads what lay in its memory has ended, or did not "
                            "release it within the exchange's supply_timeout or view_timeout; "
                            "look at the error of that process, or allow more time"),
                     edge, step, "no memory came back for");
      }
    }
    SLUICE_TRY(
        TensorDescriptor descriptor,
        TensorDescriptor::compact(plan_.graph.edges[edge].shape, plan_.graph.edges[edge].dtype));
    return slot.buffer.reshape(descriptor);
  }

  // A tensor that came after all is given back at once: its owner may wait for it.
  bool drop_incoming() {
    bool all = true;
    for (Incoming& incoming : incoming_) {
      if (incoming.view && incoming.view->ready()) incoming.view.reset();
      if (incoming.into && incoming.into->ready()) incoming.into.reset();
      if (incoming.view || incoming.into) all = false;
    }
    return all;
  }

  bool all_back() {
    bool all = true;
    for (Held& slot : slots_) {
      if (slot.lost()) slot.publication->retire();  // its reader ended first
      const bool out = slot.publication || slot.returning;
      if (out && !take_back(slot)) all = false;
    }
    return all;
  }

  Status claim(uint32_t edge, uint64_t step) { return take(slot_of(edge, step), edge, step); }

  Status publish(uint32_t edge, uint64_t step) {
    Held& slot = slot_of(edge, step);
    const PublishOptions options{.readers = static_cast<int>(plan_.tensors[edge].fetches)};
    Result<Publication> publication = exchange_.publish({plan_.graph.edges[edge].name, step},
                                                        std::move(slot.buffer).freeze(), options);
    if (!publication.ok()) return about(publication.status(), edge, step, "cannot publish");
    slot.publication = std::move(*publication);
    slot.step = step;
    return Status();
  }

  Status post(uint32_t d) {
    const Delivery& delivery = plan_.deliveries[d];
    Incoming& incoming = incoming_[d];
    const Key key{plan_.graph.edges[delivery.edge].name, incoming.next_step};
    const FetchOptions from{.from = endpoints_[plan_.process_of(delivery.edge)]};
    if (delivery.route == Route::kView) {
      incoming.view = exchange_.fetch(key, kNever, from);
      return Status();
    }
    Held& slot = slots_[delivery.slot];
    SLUICE_RETURN_IF_ERROR(take(slot, delivery.edge, incoming.next_step));
    incoming.into = exchange_.fetch_into(key, std::move(slot.buffer), kNever, from);
    return Status();
  }

  Status await(uint32_t d) {
    const Delivery& delivery = plan_.deliveries[d];
    Incoming& incoming = incoming_[d];
    auto here = [&] { return incoming.view ? incoming.view->ready() : incoming.into->ready(); };
    if (!here()) {
      const Instant began = now();
      const Status waited = context_.wait_until(here, after(began, options_.patience));
      if (!waited.ok()) return about(waited, delivery.edge, incoming.next_step, "waited for");
      traffic_[d].waited_us += std::chrono::duration<double, std::micro>(now() - began).count();
    }
    const Status taken = incoming.view ? take_view(d) : take_placed(d);
    if (!taken.ok()) return about(taken, delivery.edge, incoming.next_step, "cannot fetch");
    ++incoming.next_step;
    return Status();
  }

  Status take_view(uint32_t d) {
    Incoming& incoming = incoming_[d];
    Result<Delivery_> delivered = incoming.view->take();
    incoming.view.reset();
    if (!delivered.ok()) return delivered.status();
    const Edge& edge = plan_.graph.edges[plan_.deliveries[d].edge];
    const TensorDescriptor& found = delivered->value.descriptor();
    Result<TensorDescriptor> wanted = TensorDescriptor::compact(edge.shape, edge.dtype);
    if (!wanted.ok()) return wanted.status();
    if (!(found == *wanted)) {
      return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin,
                    "the peer's tensor has another dtype or shape than the graph");
    }
    count(d, delivered->receipt);
    if (!is_view(delivered->receipt)) {
      return Status(Code::kInternal, Scope::kEndpoint, kOrigin,
                    "the plan says view, and the receipt says " +
                        std::string(to_string(delivered->receipt.path)) + " with " +
                        std::to_string(delivered->receipt.copied_bytes) +
                        " bytes copied: give processes on different machines different hosts");
    }
    incoming.tensor = std::move(delivered->value);
    return Status();
  }

  Status take_placed(uint32_t d) {
    Incoming& incoming = incoming_[d];
    Placed placed = incoming.into->take();
    incoming.into.reset();
    Held& slot = slots_[plan_.deliveries[d].slot];
    slot.buffer = placed.take_buffer();
    if (!placed.ok()) return placed.status();
    count(d, placed.value().receipt);
    return Status();
  }

  static bool is_view(const Receipt& receipt) {
    return (receipt.path == Path::kShm || receipt.path == Path::kLoopback) &&
           receipt.copied_bytes == 0 && receipt.kernel_copied_bytes == 0;
  }

  void count(uint32_t d, const Receipt& receipt) {
    Traffic& traffic = traffic_[d];
    ++traffic.tensors;
    traffic.views += is_view(receipt);
    traffic.bytes += plan_.graph.edges[plan_.deliveries[d].edge].bytes;
    traffic.copied_bytes += receipt.copied_bytes + receipt.kernel_copied_bytes;
    traffic.path = receipt.path;
  }

  Status run_node(uint32_t node) {
    input_list_.clear();
    output_list_.clear();
    for (uint32_t e : inputs_[node]) input_list_.push_back({e, input_of(e)});
    for (uint32_t e : outputs_[node])
      output_list_.push_back({e, memory_of(e, step_ + plan_.graph.edges[e].delay)});
    return kernels_.run(node, step_, input_list_, output_list_);
  }

  std::span<const std::byte> input_of(uint32_t e) {
    if (plan_.process_of(e) == process_) return memory_of(e, step_);
    const auto found = std::lower_bound(own_.begin(), own_.end(), std::pair{e, 0u});
    const Delivery& delivery = plan_.deliveries[found->second];
    const std::byte* data = delivery.route == Route::kView ? incoming_[found->second].tensor.data()
                                                           : slots_[delivery.slot].data;
    return {data, plan_.graph.edges[e].bytes};
  }

  using Delivery_ = sluice::Delivery<Tensor>;

  Context& context_;
  Exchange& exchange_;
  const Plan& plan_;
  const uint32_t process_;
  Kernels& kernels_;
  const RunnerOptions options_;
  std::vector<Held> slots_;
  std::vector<Incoming> incoming_;
  std::vector<Traffic> traffic_;
  std::vector<const Endpoint*> endpoints_;               // by process
  std::vector<std::vector<uint32_t>> inputs_, outputs_;  // edges by node
  std::vector<std::pair<uint32_t, uint32_t>> own_;       // edge and delivery, of those to us
  std::vector<Kernels::Input> input_list_;
  std::vector<Kernels::Output> output_list_;
  uint64_t step_ = 0;
  bool prepared_ = false, started_ = false, failed_ = false, finished_ = false;
};

Runner::Runner(Context& context, Exchange& exchange, const Plan& plan, uint32_t process,
               Kernels& kernels, const RunnerOptions& options)
    : state_(std::make_unique<State>(context, exchange, plan, process, kernels, options)) {}
Runner::~Runner() = default;

Status Runner::prepare() { return state_->prepare(); }
void Runner::connect(uint32_t process, const Endpoint& endpoint) {
  state_->connect(process, endpoint);
}
Status Runner::start() { return state_->start(); }
Status Runner::run_step() { return state_->run_step(); }
uint64_t Runner::step() const { return state_->step(); }
Status Runner::finish() { return state_->finish(); }
std::span<const Traffic> Runner::traffic() const { return state_->traffic(); }

}  // namespace sluice::graph
