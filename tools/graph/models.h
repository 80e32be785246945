// The models of the poster's family: layers with the shapes of their parameters, their inputs and
// their outputs. Values are made up by whoever runs them. Source of each shape: models.cc.
#ifndef SLUICE_TOOLS_GRAPH_MODELS_H_
#define SLUICE_TOOLS_GRAPH_MODELS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::tools::networks {

struct Parameter {
  std::string name;            // "weight", in its layer
  std::vector<int64_t> shape;  // 32-bit floats
  uint64_t elements() const;
};

struct Layer {
  std::string name;
  std::vector<uint32_t> inputs;  // earlier layers; none: the input of the model
  std::vector<Parameter> parameters;
  uint64_t outputs = 0;  // elements that it hands on, of one sample
};

struct Network {
  std::string name;
  std::vector<Layer> layers;
  uint64_t parameters() const;  // elements
};

inline constexpr std::array<std::string_view, 5> kModels = {"vgg16", "alexnet", "inception", "lstm",
                                                            "gru"};
// Requires: one of kModels.
Network network_named(std::string_view name);

}  // namespace sluice::tools::networks

#endif  // SLUICE_TOOLS_GRAPH_MODELS_H_
