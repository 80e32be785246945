// Question: how long does one pull of the VGG16 parameter set take over
// TCP into preallocated memory, with no framework at all?
#include "benchmarks/bare/vgg16_pull.h"

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "vgg16_tcp";
  options.size = bare::vgg16_bytes();
  options.iterations = 5;
  options.over_tcp = true;
  options.modes = {"whole", "chunked"};  // bytes per system call: see sockets.h
  options.mode = "whole";
  bare::parse_or_exit(options, argc, argv);
  return bare::vgg16_pull(options, bare::Family::kTcp);
}
