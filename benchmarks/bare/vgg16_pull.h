// One pull of VGG16's 32 parameter tensors per step, from a server process to a
// worker process over one socket. Shared by vgg16_tcp and vgg16_unix.
#pragma once

#include <array>
#include <numeric>

#include "benchmarks/bare/program.h"
#include "benchmarks/bare/sockets.h"

namespace bare {

// Elements (32-bit floats) of VGG16's parameters (Simonyan and Zisserman 2014,
// configuration D): 13 convolutions and 3 dense layers, each weight then bias.
inline constexpr std::array<uint64_t, 32> kVgg16Elements = {
    1728,    64,  36864,     64,   73728,    128,  147456,  128, 294912,  256, 589824,  256,
    589824,  256, 1179648,   512,  2359296,  512,  2359296, 512, 2359296, 512, 2359296, 512,
    2359296, 512, 102760448, 4096, 16777216, 4096, 4096000, 1000};

constexpr uint64_t vgg16_elements() {
  return std::accumulate(kVgg16Elements.begin(), kVgg16Elements.end(), uint64_t{0});
}
static_assert(vgg16_elements() == 138'357'544);
constexpr uint64_t vgg16_bytes() { return vgg16_elements() * sizeof(float); }

// Runs options.iterations steps and prints the JSON line; returns the exit code.
// A step is timed at the worker: request byte, all tensors, one word read of
// every 4-KiB page. options.size must be vgg16_bytes().
int vgg16_pull(const Options& options, Family family);

}  // namespace bare
