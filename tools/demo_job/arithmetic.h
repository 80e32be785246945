// The numbers of the demo job: what weights and gradients are, how the server
// averages, and the independent computation that both are held against. Knows no
// process and no transport.
#ifndef SLUICE_TOOLS_DEMO_JOB_ARITHMETIC_H_
#define SLUICE_TOOLS_DEMO_JOB_ARITHMETIC_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tools/demo_job/model.h"

namespace sluice::tools::demo {

// One worker's gradient of one tensor in one step.
struct GradientName {
  uint32_t tensor = 0;  // its id
  uint32_t worker = 0;
  int64_t step = 0;
};

// Weights before the first step of the tensor with that id, in [-1, 1).
void fill_initial_weights(uint32_t tensor, std::span<float> out);
// A function of (tensor, index, step, worker) alone, in [-1, 1).
void fill_gradient(const GradientName& name, std::span<float> out);

// next[i] = weights[i] - rate * average(gradients)[i]; the average sums in the order
// given. `next` may be `weights`.
void average_and_update(std::span<const float* const> gradients, const float* weights, float* next,
                        size_t count);

// Every byte of what the server received, and its average, against gradients made anew and their
// average. Empty if all agree.
std::string check_gradients(const Model& model, uint32_t tensor, int64_t step,
                            std::span<const float* const> received);

// What the weights must be, step after step, computed without anything received.
class Reference {
 public:
  // As of `step`, counting from 0. Cost: a pass over the model for each step.
  Reference(const Model& model, uint32_t workers, int64_t step);
  // Empty if all bytes agree, else the first element that differs.
  std::string check(uint32_t tensor, const float* weights) const;
  // The gradients of this step are averaged in; the reference is then one step on.
  void advance();
  int64_t step() const { return step_; }

 private:
  const Model& model_;
  uint32_t workers_;
  int64_t step_ = 0;
  std::vector<std::unique_ptr<float[]>> weights_;
};

// Reads one word of every 4-KiB page; the sum keeps the reads from being left out.
uint64_t touch_pages(std::span<const std::byte> bytes);

// Busy work of about that long, calibrated on first use.
void compute_for(std::chrono::microseconds duration);

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_ARITHMETIC_H_
