#include "tools/demo_job/model.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace sluice::tools::demo {
namespace {

struct Layer {
  const char* name;
  size_t weights;
  size_t biases;
};

// Kernel 3 x 3 x in x out for convolutions, in x out for dense layers.
constexpr std::array<Layer, 16> kVgg16 = {{
    {"conv1_1", 1728, 64},
    {"conv1_2", 36864, 64},
    {"conv2_1", 73728, 128},
    {"conv2_2", 147456, 128},
    {"conv3_1", 294912, 256},
    {"conv3_2", 589824, 256},
    {"conv3_3", 589824, 256},
    {"conv4_1", 1179648, 512},
    {"conv4_2", 2359296, 512},
    {"conv4_3", 2359296, 512},
    {"conv5_1", 2359296, 512},
    {"conv5_2", 2359296, 512},
    {"conv5_3", 2359296, 512},
    {"fc6", 102760448, 4096},
    {"fc7", 16777216, 4096},
    {"fc8", 4096000, 1000},
}};

constexpr size_t vgg16_elements() {
  size_t sum = 0;
  for (const Layer& layer : kVgg16) sum += layer.weights + layer.biases;
  return sum;
}
static_assert(vgg16_elements() == 138'357'544);

// How much smaller "tiny" is.
constexpr size_t kTinyDivisor = 1000;

void add_tensor(Model& model, std::string name, size_t elements) {
  model.tensors.push_back({std::move(name), elements, static_cast<uint32_t>(model.tensors.size())});
}

}  // namespace

size_t Model::elements() const {
  size_t sum = 0;
  for (const TensorSpec& tensor : tensors) sum += tensor.elements;
  return sum;
}

Model model_named(std::string_view name) {
  const size_t divisor = name == "tiny" ? kTinyDivisor : 1;
  Model model{std::string(name), {}};
  for (const Layer& layer : kVgg16) {
    add_tensor(model, std::string(layer.name) + "/weight", (layer.weights + divisor - 1) / divisor);
    add_tensor(model, std::string(layer.name) + "/bias", (layer.biases + divisor - 1) / divisor);
  }
  return model;
}

Model spread_model(const Model& model, const Spreading& spreading) {
  if (!spreading.cut) return model;
  const size_t share = (model.elements() + spreading.servers - 1) / spreading.servers;
  Model spread{model.name, {}};
  for (const TensorSpec& tensor : model.tensors) {
    const size_t pieces = (tensor.elements + share - 1) / share;
    for (size_t i = 0; i < pieces; ++i) {
      const size_t elements = tensor.elements * (i + 1) / pieces - tensor.elements * i / pieces;
      add_tensor(spread, pieces == 1 ? tensor.name : tensor.name + "/" + std::to_string(i),
                 elements);
    }
  }
  return spread;
}

Placement place_tensors(const Model& model, uint32_t servers) {
  std::vector<size_t> order(model.tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return model.tensors[a].elements > model.tensors[b].elements;
  });
  Placement placement{std::vector<Model>(servers, Model{model.name, {}}),
                      std::vector<Placement::Place>(model.tensors.size())};
  for (size_t t : order) {
    auto least = std::min_element(
        placement.shards.begin(), placement.shards.end(),
        [](const Model& a, const Model& b) { return a.elements() < b.elements(); });
    placement.places[t] = {static_cast<uint32_t>(least - placement.shards.begin()),
                           static_cast<uint32_t>(least->tensors.size())};
    least->tensors.push_back(model.tensors[t]);
  }
  return placement;
}

}  // namespace sluice::tools::demo
