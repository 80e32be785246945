#include "tools/graph/job_graph.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace sluice::tools::networks {
namespace {

using sluice::graph::Edge;
using sluice::graph::Graph;
using sluice::graph::Node;

uint64_t bytes_of(const std::vector<int64_t>& shape) {
  return sizeof(float) * static_cast<uint64_t>(std::accumulate(shape.begin(), shape.end(),
                                                               int64_t{1}, std::multiplies<>()));
}

class Maker {
 public:
  Maker(std::string name, const std::vector<JobTensor>& tensors, const JobShape& shape)
      : tensors_(tensors), shape_(shape) {
    graph_.name = std::move(name);
    for (uint32_t s = 0; s < shape.servers; ++s) add_process("ps" + std::to_string(s));
    for (uint32_t w = 0; w < shape.workers; ++w) add_process("worker" + std::to_string(w));
  }

  uint32_t node(Node node) {
    graph_.nodes.push_back(std::move(node));
    return static_cast<uint32_t>(graph_.nodes.size() - 1);
  }

  uint32_t edge(std::string name, uint32_t from, std::vector<uint32_t> to,
                std::vector<int64_t> extents, uint32_t delay = 0) {
    Edge edge;
    edge.name = std::move(name);
    edge.from = from;
    edge.to = std::move(to);
    edge.shape = std::move(extents);
    edge.delay = delay;
    graph_.edges.push_back(std::move(edge));
    return static_cast<uint32_t>(graph_.edges.size() - 1);
  }

  void control(uint32_t from, uint32_t to) {
    Edge edge;
    edge.name = graph_.nodes[from].name + " > " + graph_.nodes[to].name;
    edge.from = from;
    edge.to = {to};
    edge.control = true;
    graph_.edges.push_back(std::move(edge));
  }

  uint32_t worker(uint32_t w) const { return shape_.servers + w; }

  // The servers' nodes and weights. Readers of the weights and gradients are added by the worker.
  void servers() {
    for (uint32_t s = 0; s < shape_.servers; ++s) {
      Node publish;
      publish.name = "ps" + std::to_string(s) + "/publish";
      publish.process = s;
      publish.op = "publish";
      publish.in_place = true;
      publishers_.push_back(node(publish));
    }
    for (const JobTensor& tensor : tensors_) {
      const uint64_t bytes = bytes_of(tensor.shape);
      Node update;
      update.name = "ps" + std::to_string(tensor.server) + "/update/" + tensor.name;
      update.process = tensor.server;
      update.op = "update";
      update.in_place = true;
      update.touched_bytes = bytes * (shape_.workers + 2);
      updates_.push_back(node(update));
    }
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const JobTensor& tensor = tensors_[t];
      const uint32_t publish = publishers_[tensor.server];
      edge("next/" + tensor.name, updates_[t], {publish}, tensor.shape, 1);
      weights_.push_back(edge("weights/" + tensor.name, publish, {updates_[t]}, tensor.shape));
    }
  }

  void read_weights(size_t t, uint32_t reader) { graph_.edges[weights_[t]].to.push_back(reader); }

  // The gradient of a worker: to its update, and to the server's verification.
  void gradient(uint32_t w, size_t t, uint32_t from) {
    std::vector<uint32_t> to = {updates_[t]};
    if (!verifiers_.empty()) to.push_back(verifiers_[tensors_[t].server]);
    edge("gradients/" + std::to_string(w) + "/" + tensors_[t].name, from, std::move(to),
         tensors_[t].shape);
  }

  void verifying_servers() {
    if (!shape_.verify) return;
    for (uint32_t s = 0; s < shape_.servers; ++s)
      verifiers_.push_back(verifier("ps" + std::to_string(s), s));
    for (size_t t = 0; t < tensors_.size(); ++t)
      control(updates_[t], verifiers_[tensors_[t].server]);
  }

  void verifying_worker(uint32_t w, uint32_t after) {
    if (!shape_.verify) return;
    const uint32_t last = verifier("worker" + std::to_string(w), worker(w));
    for (size_t t = 0; t < tensors_.size(); ++t) read_weights(t, last);
    control(after, last);
  }

  Graph take() { return std::move(graph_); }

 private:
  void add_process(const std::string& name) {
    sluice::graph::Process process;
    process.name = name;
    process.host = shape_.one_host ? "host" : "host-of-" + name;
    graph_.processes.push_back(std::move(process));
  }

  uint32_t verifier(const std::string& process_name, uint32_t process) {
    Node verify;
    verify.name = process_name + "/verify";
    verify.process = process;
    verify.op = "verify";
    return node(verify);
  }

  const std::vector<JobTensor>& tensors_;
  const JobShape shape_;
  Graph graph_;
  std::vector<uint32_t> publishers_, updates_, verifiers_;  // nodes
  std::vector<uint32_t> weights_;                           // edges
};

// One worker's way through the layers and back.
class WorkerLayers {
 public:
  WorkerLayers(Maker& maker, const Network& network, const JobShape& shape, uint32_t batch,
               uint32_t w)
      : maker_(maker), network_(network), batch_(batch), w_(w), readers_(network.layers.size()) {
    const double each = shape.compute_us / (2.0 * static_cast<double>(network.layers.size()));
    for (const char* way : {"forward", "backward"}) {
      for (size_t i = 0; i < network.layers.size(); ++i) {
        const bool back = *way == 'b';
        const Layer& layer = network.layers[back ? network.layers.size() - 1 - i : i];
        Node node;
        node.name = name(way, layer.name);
        node.process = maker.worker(w);
        node.op = way;
        node.compute_us = each;
        (back ? backwards_ : forwards_).push_back(maker.node(node));
      }
    }
    std::reverse(backwards_.begin(), backwards_.end());
    for (uint32_t l = 0; l < network.layers.size(); ++l) {
      for (uint32_t input : network.layers[l].inputs) readers_[input].push_back(l);
    }
  }

  void connect() {
    size_t tensor = 0;
    for (uint32_t l = 0; l < network_.layers.size(); ++l) {
      const Layer& layer = network_.layers[l];
      connect_layer(l);
      for (size_t i = 0; i < layer.parameters.size(); ++i, ++tensor) {
        maker_.read_weights(tensor, forwards_[l]);
        maker_.read_weights(tensor, backwards_[l]);
        maker_.gradient(w_, tensor, backwards_[l]);
      }
    }
  }

  // The first layer is the last on the way back.
  uint32_t last() const { return backwards_.front(); }

 private:
  std::string name(const std::string& what, const std::string& layer) const {
    return "worker" + std::to_string(w_) + "/" + what + "/" + layer;
  }

  // Its output goes to the layers that follow, on the way there and back; their errors come back
  // to it.
  void connect_layer(uint32_t l) {
    const Layer& layer = network_.layers[l];
    const std::vector<int64_t> extents = {batch_, static_cast<int64_t>(layer.outputs)};
    std::vector<uint32_t> to;
    for (uint32_t reader : readers_[l]) to.push_back(forwards_[reader]);
    for (uint32_t reader : readers_[l]) to.push_back(backwards_[reader]);
    if (to.empty()) to = {backwards_[l]};  // the last: its output begins the way back
    maker_.edge(name("output", layer.name), forwards_[l], std::move(to), extents);
    for (uint32_t reader : readers_[l]) {
      maker_.edge(name("error", network_.layers[reader].name + "/" + layer.name),
                  backwards_[reader], {backwards_[l]}, extents);
    }
  }

  Maker& maker_;
  const Network& network_;
  const int64_t batch_;
  const uint32_t w_;
  std::vector<uint32_t> forwards_, backwards_;  // nodes by layer
  std::vector<std::vector<uint32_t>> readers_;  // layers by layer
};

}  // namespace

Graph job_graph(const std::vector<JobTensor>& tensors, const JobShape& shape) {
  Maker maker("job", tensors, shape);
  maker.servers();
  std::vector<uint32_t> makers, steps;
  for (uint32_t w = 0; w < shape.workers; ++w) {
    const std::string name = "worker" + std::to_string(w);
    Node make;
    make.name = name + "/make";
    make.process = maker.worker(w);
    make.op = "make";
    makers.push_back(maker.node(make));
    Node step;
    step.name = name + "/step";
    step.process = maker.worker(w);
    step.op = "step";
    step.in_place = true;
    step.compute_us = shape.compute_us;
    steps.push_back(maker.node(step));
  }
  maker.verifying_servers();
  for (uint32_t w = 0; w < shape.workers; ++w) {
    for (size_t t = 0; t < tensors.size(); ++t) {
      maker.read_weights(t, steps[w]);
      maker.edge("made/" + std::to_string(w) + "/" + tensors[t].name, makers[w], {steps[w]},
                 tensors[t].shape);
      maker.gradient(w, t, steps[w]);
    }
    maker.verifying_worker(w, steps[w]);
  }
  return maker.take();
}

std::vector<JobTensor> tensors_of(const Network& network, uint32_t servers, bool cut) {
  std::vector<JobTensor> tensors;
  const uint64_t share = (network.parameters() + servers - 1) / servers;
  for (const Layer& layer : network.layers) {
    for (const Parameter& parameter : layer.parameters) {
      const std::string name = layer.name + "/" + parameter.name;
      const uint64_t elements = parameter.elements();
      const uint64_t pieces = cut ? (elements + share - 1) / share : 1;
      if (pieces == 1) tensors.push_back({name, parameter.shape, 0});
      for (uint64_t i = 0; i < pieces && pieces > 1; ++i) {
        const uint64_t size = elements * (i + 1) / pieces - elements * i / pieces;
        tensors.push_back({name + "/" + std::to_string(i), {static_cast<int64_t>(size)}, 0});
      }
    }
  }
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return bytes_of(tensors[a].shape) > bytes_of(tensors[b].shape);
  });
  std::vector<uint64_t> loads(servers);
  for (size_t t : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    tensors[t].server = static_cast<uint32_t>(least - loads.begin());
    *least += bytes_of(tensors[t].shape);
  }
  return tensors;
}

Graph layer_graph(const Network& network, const JobShape& shape, uint32_t batch) {
  const std::vector<JobTensor> tensors = tensors_of(network, shape.servers);
  Maker maker(network.name, tensors, shape);
  maker.servers();
  std::vector<WorkerLayers> workers;
  for (uint32_t w = 0; w < shape.workers; ++w)
    workers.emplace_back(maker, network, shape, batch, w);
  maker.verifying_servers();
  for (uint32_t w = 0; w < shape.workers; ++w) {
    workers[w].connect();
    maker.verifying_worker(w, workers[w].last());
  }
  return maker.take();
}

}  // namespace sluice::tools::networks
