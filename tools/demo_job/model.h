// The parameter sets that the demo job moves: names and sizes of tensors. Knows
// nothing of values or of how they travel.
#ifndef SLUICE_TOOLS_DEMO_JOB_MODEL_H_
#define SLUICE_TOOLS_DEMO_JOB_MODEL_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::tools::demo {

struct TensorSpec {
  std::string name;
  size_t elements = 0;  // 32-bit floats
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

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_MODEL_H_
