// The numbers of the demo job: sizes, order of summation, and a checker that misses no
// byte.
#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "tools/demo_job/arithmetic.h"
#include "tools/demo_job/model.h"

namespace sluice::tools::demo {
namespace {

// Longer than two blocks, with a rest.
Model small_model() { return {"small", {{"a", 5000, 0}, {"b", 1, 1}}}; }

struct Gradients {
  Gradients(const Model& model, uint32_t tensor, int64_t step, uint32_t workers) {
    for (uint32_t w = 0; w < workers; ++w) {
      values.emplace_back(model.tensors[tensor].elements);
      fill_gradient({tensor, w, step}, values.back());
      pointers.push_back(values.back().data());
    }
  }
  std::vector<std::vector<float>> values;
  std::vector<const float*> pointers;
};

TEST_CASE("vgg16 has its 32 tensors and 138,357,544 floats") {
  const Model model = model_named("vgg16");
  CHECK(model.tensors.size() == 32);
  CHECK(model.elements() == 138'357'544);
  CHECK(model.tensors[26].name == "fc6/weight");
  CHECK(model.tensors[26].elements == 102'760'448);
  CHECK(model.tensors[31].elements == 1000);
}

TEST_CASE("tiny has the same names and at least one float in each tensor") {
  const Model big = model_named("vgg16");
  const Model tiny = model_named("tiny");
  REQUIRE(tiny.tensors.size() == big.tensors.size());
  for (size_t t = 0; t < big.tensors.size(); ++t) {
    CHECK(tiny.tensors[t].name == big.tensors[t].name);
    CHECK(tiny.tensors[t].elements == (big.tensors[t].elements + 999) / 1000);
  }
}

TEST_CASE(
    "each server's part is as large as whole tensors allow, and every tensor is in one of them") {
  const uint32_t servers = GENERATE(1u, 2u, 3u, 4u, 32u);
  const Model model = model_named("vgg16");
  const Placement placement = place_tensors(model, servers);
  REQUIRE(placement.shards.size() == servers);
  size_t tensors = 0;
  for (const Model& shard : placement.shards) {
    CHECK_FALSE(shard.tensors.empty());
    tensors += shard.tensors.size();
  }
  CHECK(tensors == model.tensors.size());
  for (uint32_t t = 0; t < model.tensors.size(); ++t) {
    const Placement::Place place = placement.places[t];
    const TensorSpec& spec = placement.shards[place.server].tensors[place.tensor];
    CHECK(spec.id == t);
    CHECK(spec.name == model.tensors[t].name);
    CHECK(spec.elements == model.tensors[t].elements);
  }
  // fc6/weight is three quarters of the model: alone on one of two.
  if (servers == 2) CHECK(placement.shards[placement.places[26].server].elements() == 102'760'448);
}

TEST_CASE(
    "a tensor larger than a server's share is cut into pieces that fit, and no part is far from "
    "even") {
  const uint32_t servers = GENERATE(2u, 3u, 4u);
  const Model whole = model_named("vgg16");
  const Model cut = spread_model(whole, {.servers = servers, .cut = true});
  CHECK(cut.elements() == whole.elements());
  const size_t share = (whole.elements() + servers - 1) / servers;
  for (uint32_t t = 0; t < cut.tensors.size(); ++t) {
    CHECK(cut.tensors[t].id == t);
    CHECK(cut.tensors[t].elements <= share);
  }
  CHECK(cut.tensors[26].name == "fc6/weight/0");
  for (const Model& shard : place_tensors(cut, servers).shards) {
    CHECK(static_cast<double>(shard.elements()) ==
          Approx(static_cast<double>(whole.elements()) / servers).epsilon(0.11));
  }
  CHECK(spread_model(whole, {.servers = servers, .cut = false}).tensors.size() ==
        whole.tensors.size());
}

TEST_CASE("values of a tensor do not depend on which server has it") {
  const Model model = small_model();
  const Placement placement = place_tensors(model, 2);
  const Placement::Place place = placement.places[1];
  Gradients gradients(model, 1, 3, 2);
  CHECK(
      check_gradients(placement.shards[place.server], place.tensor, 3, gradients.pointers).empty());
  Gradients others(model, 0, 3, 2);
  CHECK_FALSE(
      check_gradients(placement.shards[place.server], place.tensor, 3, others.pointers).empty());
}

TEST_CASE("the average sums the workers in their order: another order gives other bits") {
  const Model model = small_model();
  Gradients gradients(model, 0, 7, 3);
  std::vector<float> weights(5000), forward(5000), backward(5000);
  fill_initial_weights(0, weights);
  average_and_update(gradients.pointers, weights.data(), forward.data(), weights.size());
  std::swap(gradients.pointers[0], gradients.pointers[2]);
  average_and_update(gradients.pointers, weights.data(), backward.data(), weights.size());
  CHECK(std::memcmp(forward.data(), backward.data(), forward.size() * sizeof(float)) != 0);
}

TEST_CASE("the server's update is what the reference expects, bit for bit, step after step") {
  const Model model = small_model();
  const uint32_t workers = GENERATE(1u, 2u, 3u, 7u);
  Reference reference(model, workers, 0);
  std::vector<std::vector<float>> weights;
  for (uint32_t t = 0; t < 2; ++t) {
    weights.emplace_back(model.tensors[t].elements);
    fill_initial_weights(t, weights[t]);
  }
  for (int64_t step = 0; step < 5; ++step) {
    for (uint32_t t = 0; t < 2; ++t) {
      CHECK(reference.check(t, weights[t].data()).empty());
      Gradients gradients(model, t, step, workers);
      CHECK(check_gradients(model, t, step, gradients.pointers).empty());
      average_and_update(gradients.pointers, weights[t].data(), weights[t].data(),
                         weights[t].size());
    }
    reference.advance();
  }
  // A worker that starts late has the same expectation.
  CHECK(Reference(model, workers, 5).check(0, weights[0].data()).empty());
  CHECK_FALSE(Reference(model, workers, 4).check(0, weights[0].data()).empty());
}

TEST_CASE("every bit of every byte counts: a single one is found") {
  const Model model = small_model();
  const size_t byte =
      GENERATE(size_t{0}, size_t{1}, size_t{8191}, size_t{8192}, size_t{12345}, size_t{19999});
  const Reference reference(model, 2, 0);
  std::vector<float> weights(5000);
  fill_initial_weights(0, weights);
  reinterpret_cast<uint8_t*>(weights.data())[byte] ^= 1;
  const std::string element = "element " + std::to_string(byte / 4) + " ";
  CHECK(reference.check(0, weights.data()).find(element) != std::string::npos);

  Gradients gradients(model, 0, 3, 2);
  reinterpret_cast<uint8_t*>(gradients.values[1].data())[byte] ^= 1;
  const std::string told = check_gradients(model, 0, 3, gradients.pointers);
  CHECK(told.find("worker 1 " + element) != std::string::npos);
}

TEST_CASE("gradients of another step or worker do not pass") {
  const Model model = small_model();
  Gradients gradients(model, 0, 3, 2);
  CHECK_FALSE(check_gradients(model, 0, 4, gradients.pointers).empty());
  std::swap(gradients.pointers[0], gradients.pointers[1]);
  CHECK_FALSE(check_gradients(model, 0, 3, gradients.pointers).empty());
}

}  // namespace
}  // namespace sluice::tools::demo
