#include "tools/graph/models.h"

#include <functional>
#include <numeric>
#include <utility>

namespace sluice::tools::networks {
namespace {

// Layers one after the other, with the size of the image that each hands on.
class Builder {
 public:
  struct Image {
    int64_t channels = 0, height = 0, width = 0;
    uint64_t elements() const { return static_cast<uint64_t>(channels * height * width); }
  };
  struct Branch {
    std::vector<uint32_t> layers;  // side by side, in their channels
    Image image;
  };
  struct Window {
    int64_t height = 1, width = 1, stride = 1, pad_height = 0, pad_width = 0;
  };

  explicit Builder(std::string name) { network_.name = std::move(name); }

  Branch add(Layer layer, const Image& image) {
    layer.outputs = image.elements();
    network_.layers.push_back(std::move(layer));
    return {{static_cast<uint32_t>(network_.layers.size() - 1)}, image};
  }

  // `groups`: the input channels are split between groups of filters. `norm`: batch normalisation
  // with scale and shift instead of a bias.
  Branch conv(const std::string& name, const Branch& in, int64_t channels, const Window& window,
              bool norm = false, int64_t groups = 1) {
    Layer layer{name, in.layers, {}, 0};
    layer.parameters.push_back(
        {"weight", {channels, in.image.channels / groups, window.height, window.width}});
    if (norm) {
      layer.parameters.push_back({"scale", {channels}});
      layer.parameters.push_back({"shift", {channels}});
    } else {
      layer.parameters.push_back({"bias", {channels}});
    }
    return add(std::move(layer), after(in.image, channels, window));
  }

  Branch pool(const std::string& name, const Branch& in, const Window& window) {
    return add({name, in.layers, {}, 0}, after(in.image, in.image.channels, window));
  }

  Branch dense(const std::string& name, const Branch& in, int64_t outputs) {
    const int64_t inputs = static_cast<int64_t>(in.image.elements());
    return add({name, in.layers, {{"weight", {outputs, inputs}}, {"bias", {outputs}}}, 0},
               {outputs, 1, 1});
  }

  static Branch beside(std::initializer_list<Branch> branches) {
    Branch all{{}, {0, branches.begin()->image.height, branches.begin()->image.width}};
    for (const Branch& branch : branches) {
      all.layers.insert(all.layers.end(), branch.layers.begin(), branch.layers.end());
      all.image.channels += branch.image.channels;
    }
    return all;
  }

  Network take() { return std::move(network_); }

 private:
  static Image after(const Image& in, int64_t channels, const Window& window) {
    return {channels, (in.height + 2 * window.pad_height - window.height) / window.stride + 1,
            (in.width + 2 * window.pad_width - window.width) / window.stride + 1};
  }
  Network network_;
};

using Branch = Builder::Branch;
using Window = Builder::Window;

Window square(int64_t size, int64_t stride = 1, int64_t pad = 0) {
  return {size, size, stride, pad, pad};
}

// Simonyan and Zisserman 2014, arXiv:1409.1556, table 1, configuration D: 138,357,544 parameters.
Network vgg16() {
  Builder builder("vgg16");
  Branch at{{}, {3, 224, 224}};
  const std::vector<std::pair<int, int64_t>> blocks = {
      {2, 64}, {2, 128}, {3, 256}, {3, 512}, {3, 512}};
  for (size_t block = 0; block < blocks.size(); ++block) {
    const std::string number = std::to_string(block + 1);
    for (int i = 1; i <= blocks[block].first; ++i) {
      at = builder.conv("conv" + number + "_" + std::to_string(i), at, blocks[block].second,
                        square(3, 1, 1));
    }
    at = builder.pool("pool" + number, at, square(2, 2));
  }
  at = builder.dense("fc6", at, 4096);
  at = builder.dense("fc7", at, 4096);
  builder.dense("fc8", at, 1000);
  return builder.take();
}

// Krizhevsky, Sutskever and Hinton 2012, section 3.5 and figure 2, with its two groups of filters;
// the input of 227 that its 55 x 55 outputs need: 60,965,224 parameters.
Network alexnet() {
  Builder builder("alexnet");
  Branch at{{}, {3, 227, 227}};
  at = builder.conv("conv1", at, 96, square(11, 4));
  at = builder.pool("pool1", at, square(3, 2));
  at = builder.conv("conv2", at, 256, square(5, 1, 2), false, 2);
  at = builder.pool("pool2", at, square(3, 2));
  at = builder.conv("conv3", at, 384, square(3, 1, 1));
  at = builder.conv("conv4", at, 384, square(3, 1, 1), false, 2);
  at = builder.conv("conv5", at, 256, square(3, 1, 1), false, 2);
  at = builder.pool("pool5", at, square(3, 2));
  at = builder.dense("fc6", at, 4096);
  at = builder.dense("fc7", at, 4096);
  builder.dense("fc8", at, 1000);
  return builder.take();
}

// Szegedy and others 2015, arXiv:1512.00567, section 6 and figures 5 to 7, in the shapes of the
// version that was published with it (299 x 299, without the auxiliary classifier):
// 23,834,568 parameters with scale and shift of each normalisation.
class Inception {
 public:
  Network build() {
    Branch at{{}, {3, 299, 299}};
    at = conv("stem1", at, 32, square(3, 2));
    at = conv("stem2", at, 32, square(3));
    at = conv("stem3", at, 64, square(3, 1, 1));
    at = builder_.pool("stem3/pool", at, square(3, 2));
    at = conv("stem4", at, 80, square(1));
    at = conv("stem5", at, 192, square(3));
    at = builder_.pool("stem5/pool", at, square(3, 2));
    at = block_a("mixed1", at, 32);
    at = block_a("mixed2", at, 64);
    at = block_a("mixed3", at, 64);
    at = reduce_a("mixed4", at);
    at = block_b("mixed5", at, 128);
    at = block_b("mixed6", at, 160);
    at = block_b("mixed7", at, 160);
    at = block_b("mixed8", at, 192);
    at = reduce_b("mixed9", at);
    at = block_c("mixed10", at);
    at = block_c("mixed11", at);
    at = builder_.pool("pool", at, square(8));
    builder_.dense("fc", at, 1000);
    return builder_.take();
  }

 private:
  Branch conv(const std::string& name, const Branch& in, int64_t channels, const Window& window) {
    return builder_.conv(name, in, channels, window, true);
  }
  static Window wide(int64_t size) { return {1, size, 1, 0, size / 2}; }
  static Window high(int64_t size) { return {size, 1, 1, size / 2, 0}; }

  Branch block_a(const std::string& name, const Branch& in, int64_t pooled) {
    Branch one = conv(name + "/1x1", in, 64, square(1));
    Branch five = conv(name + "/5x5a", in, 48, square(1));
    five = conv(name + "/5x5b", five, 64, square(5, 1, 2));
    Branch three = conv(name + "/3x3a", in, 64, square(1));
    three = conv(name + "/3x3b", three, 96, square(3, 1, 1));
    three = conv(name + "/3x3c", three, 96, square(3, 1, 1));
    Branch pool = builder_.pool(name + "/pool", in, square(3, 1, 1));
    pool = conv(name + "/pool1x1", pool, pooled, square(1));
    return Builder::beside({one, five, three, pool});
  }
  Branch reduce_a(const std::string& name, const Branch& in) {
    Branch three = conv(name + "/3x3", in, 384, square(3, 2));
    Branch twice = conv(name + "/3x3a", in, 64, square(1));
    twice = conv(name + "/3x3b", twice, 96, square(3, 1, 1));
    twice = conv(name + "/3x3c", twice, 96, square(3, 2));
    return Builder::beside({three, twice, builder_.pool(name + "/pool", in, square(3, 2))});
  }
  Branch block_b(const std::string& name, const Branch& in, int64_t inner) {
    Branch one = conv(name + "/1x1", in, 192, square(1));
    Branch seven = conv(name + "/7x7a", in, inner, square(1));
    seven = conv(name + "/7x7b", seven, inner, wide(7));
    seven = conv(name + "/7x7c", seven, 192, high(7));
    Branch twice = conv(name + "/twice7x7a", in, inner, square(1));
    twice = conv(name + "/twice7x7b", twice, inner, high(7));
    twice = conv(name + "/twice7x7c", twice, inner, wide(7));
    twice = conv(name + "/twice7x7d", twice, inner, high(7));
    twice = conv(name + "/twice7x7e", twice, 192, wide(7));
    Branch pool = builder_.pool(name + "/pool", in, square(3, 1, 1));
    pool = conv(name + "/pool1x1", pool, 192, square(1));
    return Builder::beside({one, seven, twice, pool});
  }
  Branch reduce_b(const std::string& name, const Branch& in) {
    Branch three = conv(name + "/3x3a", in, 192, square(1));
    three = conv(name + "/3x3b", three, 320, square(3, 2));
    Branch seven = conv(name + "/7x7a", in, 192, square(1));
    seven = conv(name + "/7x7b", seven, 192, wide(7));
    seven = conv(name + "/7x7c", seven, 192, high(7));
    seven = conv(name + "/7x7d", seven, 192, square(3, 2));
    return Builder::beside({three, seven, builder_.pool(name + "/pool", in, square(3, 2))});
  }
  Branch block_c(const std::string& name, const Branch& in) {
    Branch one = conv(name + "/1x1", in, 320, square(1));
    const Branch three = conv(name + "/3x3", in, 384, square(1));
    Branch twice = conv(name + "/twice3x3a", in, 448, square(1));
    twice = conv(name + "/twice3x3b", twice, 384, square(3, 1, 1));
    Branch pool = builder_.pool(name + "/pool", in, square(3, 1, 1));
    pool = conv(name + "/pool1x1", pool, 192, square(1));
    return Builder::beside({one, conv(name + "/3x3wide", three, 384, wide(3)),
                            conv(name + "/3x3high", three, 384, high(3)),
                            conv(name + "/twice3x3wide", twice, 384, wide(3)),
                            conv(name + "/twice3x3high", twice, 384, high(3)), pool});
  }

  Builder builder_{"inception"};
};

// The large model of words of Zaremba, Sutskever and Vinyals 2014, arXiv:1409.2329, section 4.1:
// 10,000 words, two layers of 1,500 cells, 35 steps of time: 66,022,000 parameters. A layer's
// weights are one matrix, (inputs + cells) x (gates * cells).
constexpr int64_t kWords = 10'000, kCells = 1'500, kTimes = 35;

// `gates` of a cell beside one candidate: in one matrix where `together`.
Network recurrent(const std::string& name, int64_t gates, bool together) {
  Builder builder(name);
  const Builder::Image line{kTimes * kCells, 1, 1};
  Branch at = builder.add({"embedding", {}, {{"weight", {kWords, kCells}}}, 0}, line);
  for (const char* layer : {"layer1", "layer2"}) {
    Layer next{layer, at.layers, {}, 0};
    if (together) {
      next.parameters = {{"weight", {2 * kCells, (gates + 1) * kCells}},
                         {"bias", {(gates + 1) * kCells}}};
    } else {
      next.parameters = {{"gates/weight", {2 * kCells, gates * kCells}},
                         {"gates/bias", {gates * kCells}},
                         {"candidate/weight", {2 * kCells, kCells}},
                         {"candidate/bias", {kCells}}};
    }
    at = builder.add(std::move(next), line);
  }
  builder.add({"softmax", at.layers, {{"weight", {kCells, kWords}}, {"bias", {kWords}}}, 0},
              {kTimes * kWords, 1, 1});
  return builder.take();
}

}  // namespace

uint64_t Parameter::elements() const {
  return static_cast<uint64_t>(
      std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
}

uint64_t Network::parameters() const {
  uint64_t sum = 0;
  for (const Layer& layer : layers) {
    for (const Parameter& parameter : layer.parameters) sum += parameter.elements();
  }
  return sum;
}

Network network_named(std::string_view name) {
  if (name == "alexnet") return alexnet();
  if (name == "inception") return Inception().build();
  if (name == "lstm") return recurrent("lstm", 3, true);
  // The same model with the cells of Cho and others 2014, arXiv:1406.1078, section 2.3:
  // two gates, and a candidate that reads what the gates left: 57,019,000 parameters.
  if (name == "gru") return recurrent("gru", 2, false);
  return vgg16();
}

}  // namespace sluice::tools::networks
