#include "tools/demo_job/model.h"

#include <array>

namespace sluice::tools::demo {
namespace {

struct Layer {
  const char* name;
  size_t weights;
  size_t biases;
};

// Kernel 3 x 3 x in x out for convolutions, in x out for dense layers.
constexpr std::array<Layer, 16> kVgg16 = {{
    {"conv1_1", 1728, 64},     {"conv1_2", 36864, 64},    {"conv2_1", 73728, 128},      {"conv2_2", 147456, 128},
    {"conv3_1", 294912, 256},  {"conv3_2", 589824, 256},  {"conv3_3", 589824, 256},     {"conv4_1", 1179648, 512},
    {"conv4_2", 2359296, 512}, {"conv4_3", 2359296, 512}, {"conv5_1", 2359296, 512},    {"conv5_2", 2359296, 512},
    {"conv5_3", 2359296, 512}, {"fc6", 102760448, 4096},  {"fc7", 16777216, 4096},      {"fc8", 4096000, 1000},
}};

constexpr size_t vgg16_elements() {
  size_t sum = 0;
  for (const Layer& layer : kVgg16) sum += layer.weights + layer.biases;
  return sum;
}
static_assert(vgg16_elements() == 138'357'544);

// How much smaller "tiny" is.
constexpr size_t kTinyDivisor = 1000;

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
    model.tensors.push_back({std::string(layer.name) + "/weight", (layer.weights + divisor - 1) / divisor});
    model.tensors.push_back({std::string(layer.name) + "/bias", (layer.biases + divisor - 1) / divisor});
  }
  return model;
}

}  // namespace sluice::tools::demo
