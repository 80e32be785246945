#include "tools/demo_job/arithmetic.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <sluice/base/clock.h>

namespace sluice::tools::demo {
namespace {

// Floats handled at a time: small enough to stay in the first-level cache.
constexpr size_t kBlock = 2048;
// Step width of the update. Not a power of two: rounding must happen to be compared.
constexpr float kRate = 0.01f;
constexpr size_t kPageBytes = 4096;

uint32_t seed_of(uint32_t tensor, uint32_t worker, int64_t step) {
  uint64_t x = (uint64_t{tensor} << 48) ^ (uint64_t{worker} << 40) ^ static_cast<uint64_t>(step);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;  // splitmix64's finaliser (Vigna)
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>(x ^ (x >> 31));
}

float value_at(uint32_t seed, uint32_t index) {
  uint32_t x = index * 0x9e3779b1u + seed;
  x ^= x >> 15;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  return static_cast<float>(static_cast<int32_t>(x)) * 0x1p-31f;
}

// The two passes that make numbers. Written once and compiled twice on x86: for every processor,
// and for AVX2, which multiplies eight integers at once and takes a quarter of the time.
[[gnu::always_inline]] inline void fill_pass(uint32_t seed, size_t first, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = value_at(seed, static_cast<uint32_t>(first + i));
}

[[gnu::always_inline]] inline void add_pass(uint32_t seed, size_t first, std::span<float> sums) {
  for (size_t i = 0; i < sums.size(); ++i)
    sums[i] += value_at(seed, static_cast<uint32_t>(first + i));
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void fill_by_avx2(uint32_t seed, size_t first, std::span<float> out) {
  fill_pass(seed, first, out);
}

[[gnu::target("avx2")]] void add_by_avx2(uint32_t seed, size_t first, std::span<float> sums) {
  add_pass(seed, first, sums);
}
#endif

// out[i] = the gradient's element first + i.
void fill(uint32_t seed, size_t first, std::span<float> out) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return fill_by_avx2(seed, first, out);
#endif
  fill_pass(seed, first, out);
}

// sums[i] += the gradient's element first + i.
void add(uint32_t seed, size_t first, std::span<float> sums) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return add_by_avx2(seed, first, sums);
#endif
  add_pass(seed, first, sums);
}

// The server's average of one block: the workers' gradients in the order given.
void average_block(std::span<const float* const> gradients, size_t first, std::span<float> out) {
  std::memcpy(out.data(), gradients[0] + first, out.size_bytes());
  for (size_t w = 1; w < gradients.size(); ++w) {
    const float* gradient = gradients[w] + first;
    for (size_t i = 0; i < out.size(); ++i) out[i] += gradient[i];
  }
  const float count = static_cast<float>(gradients.size());
  for (float& value : out) value /= count;
}

// The same by another route: of nothing received, but of gradients made anew.
void average_anew(std::span<const uint32_t> seeds, size_t first, std::span<float> out) {
  fill(seeds[0], first, out);
  for (size_t w = 1; w < seeds.size(); ++w) add(seeds[w], first, out);
  const float count = static_cast<float>(seeds.size());
  for (float& value : out) value /= count;
}

std::vector<uint32_t> seeds_of(uint32_t tensor, uint32_t workers, int64_t step) {
  std::vector<uint32_t> seeds;
  for (uint32_t w = 0; w < workers; ++w) seeds.push_back(seed_of(tensor, w, step));
  return seeds;
}

std::string difference(const std::string& what, const float* got, const float* expected,
                       size_t count, size_t first) {
  if (std::memcmp(got, expected, count * sizeof(float)) == 0) return {};
  size_t i = 0;
  while (std::memcmp(got + i, expected + i, sizeof(float)) == 0) ++i;
  return what + " element " + std::to_string(first + i) + " is " + std::to_string(got[i]) +
         ", must be " + std::to_string(expected[i]) + " bit for bit";
}

// The weights before the first step have a seed that no gradient has.
constexpr uint32_t kNoWorker = 255;

uint64_t busy_rounds(uint64_t rounds) {
  uint64_t x = 88172645463325252ull;  // xorshift64 (Marsaglia 2003)
  for (uint64_t i = 0; i < rounds; ++i) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
  }
  return x;
}

volatile uint64_t busy_sink;

uint64_t rounds_per_millisecond() {
  constexpr uint64_t kTrial = 1'000'000;
  double fastest = 1e9;
  for (int i = 0; i < 5; ++i) {
    Instant start = now();
    busy_sink = busy_rounds(kTrial);
    fastest = std::min(fastest, std::chrono::duration<double, std::milli>(now() - start).count());
  }
  return static_cast<uint64_t>(kTrial / std::max(fastest, 1e-3));
}

}  // namespace

void fill_initial_weights(uint32_t tensor, std::span<float> out) {
  fill(seed_of(tensor, kNoWorker, 0), 0, out);
}

void fill_gradient(const GradientName& name, std::span<float> out) {
  fill(seed_of(name.tensor, name.worker, name.step), 0, out);
}

void average_and_update(std::span<const float* const> gradients, const float* weights, float* next,
                        size_t count) {
  std::array<float, kBlock> average;
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t length = std::min(kBlock, count - first);
    average_block(gradients, first, {average.data(), length});
    for (size_t i = 0; i < length; ++i) next[first + i] = weights[first + i] - kRate * average[i];
  }
}

std::string check_gradients(const Model& model, uint32_t tensor, int64_t step,
                            std::span<const float* const> received) {
  const TensorSpec& spec = model.tensors[tensor];
  const std::vector<uint32_t> seeds =
      seeds_of(spec.id, static_cast<uint32_t>(received.size()), step);
  std::array<float, kBlock> expected;
  std::array<float, kBlock> average;
  for (size_t first = 0; first < spec.elements; first += kBlock) {
    const size_t length = std::min(kBlock, spec.elements - first);
    for (size_t w = 0; w < received.size(); ++w) {
      fill(seeds[w], first, {expected.data(), length});
      std::string wrong = difference("gradient " + spec.name + " of worker " + std::to_string(w),
                                     received[w] + first, expected.data(), length, first);
      if (!wrong.empty()) return wrong;
    }
    average_block(received, first, {average.data(), length});
    average_anew(seeds, first, {expected.data(), length});
    std::string wrong =
        difference("average of " + spec.name, average.data(), expected.data(), length, first);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

Reference::Reference(const Model& model, uint32_t workers, int64_t step)
    : model_(model), workers_(workers) {
  for (uint32_t t = 0; t < model.tensors.size(); ++t) {
    const size_t elements = model.tensors[t].elements;
    weights_.push_back(std::make_unique_for_overwrite<float[]>(elements));
    fill_initial_weights(model.tensors[t].id, {weights_[t].get(), elements});
  }
  while (step_ < step) advance();
}

std::string Reference::check(uint32_t tensor, const float* weights) const {
  const TensorSpec& spec = model_.tensors[tensor];
  return difference("weights " + spec.name, weights, weights_[tensor].get(), spec.elements, 0);
}

void Reference::advance() {
  for (uint32_t t = 0; t < weights_.size(); ++t) {
    const std::vector<uint32_t> seeds = seeds_of(model_.tensors[t].id, workers_, step_);
    float* weights = weights_[t].get();
    const size_t elements = model_.tensors[t].elements;
    std::array<float, kBlock> average;
    for (size_t first = 0; first < elements; first += kBlock) {
      const size_t length = std::min(kBlock, elements - first);
      average_anew(seeds, first, {average.data(), length});
      for (size_t i = 0; i < length; ++i) weights[first + i] -= kRate * average[i];
    }
  }
  ++step_;
}

uint64_t touch_pages(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (size_t at = 0; at + sizeof(uint32_t) <= bytes.size(); at += kPageBytes) {
    sum += *reinterpret_cast<const volatile uint32_t*>(bytes.data() + at);
  }
  return sum;
}

void compute_for(std::chrono::microseconds duration) {
  static const uint64_t rate = rounds_per_millisecond();
  busy_sink = busy_rounds(static_cast<uint64_t>(duration.count()) * rate / 1000);
}

}  // namespace sluice::tools::demo
