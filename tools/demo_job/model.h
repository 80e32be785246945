// The parameter sets that the demo job moves: names and sizes of tensors. Knows
// nothing of values or of how they travel.
#ifndef SLUICE_TOOLS_DEMO_JOB_MODEL_H_
#define SLUICE_TOOLS_DEMO_JOB_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::tools::demo {

struct TensorSpec {
  std::string name;
  size_t elements = 0;  // 32-bit floats
  uint32_t id = 0;      // its place in the whole model, from which its values follow
  size_t bytes() const { return elements * sizeof(float); }
};

struct Model {
  std::string name;
  std::vector<TensorSpec> tensors;
  size_t elements() const;
  size_t bytes() const { return elements() * sizeof(float); }
};

// "vgg16": configuration D of Simonyan and Zisserman 2014, 32 tensors, 138,357,544
// floats (527.8 MiB). "tiny": the same 32 names, each a thousandth of the size.
// Requires: one of these names.
Model model_named(std::string_view name);

// How a model is spread over several parameter servers.
struct Spreading {
  uint32_t servers = 1;
  bool cut = false;  // tensors larger than a server's share are cut into equal pieces
};

// The model with its large tensors cut, where that is asked for. Pieces are tensors of their own,
// named `fc6/weight/0` and so on.
Model spread_model(const Model& model, const Spreading& spreading);

// Which server has which tensors. They keep their ids.
struct Placement {
  struct Place {
    uint32_t server = 0;
    uint32_t tensor = 0;  // in its shard
  };
  std::vector<Model> shards;  // one for each server
  std::vector<Place> places;  // one for each tensor of the whole
};
// The largest tensor that is left goes to the server with the fewest bytes.
// Requires: spread_model()'s result, no more servers than tensors.
Placement place_tensors(const Model& model, uint32_t servers);

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_MODEL_H_
