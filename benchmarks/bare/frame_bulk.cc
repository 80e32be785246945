// Question: how fast do large messages go as raw Ethernet frames, 64 in one call on either side
// (mmsg), or out of a ring that the kernel fills (ring)? Over the wire of benchmarks/wire.py.
#include "benchmarks/bare/frame_ends.h"

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "frame_bulk";
  options.size = 64u << 20;
  options.iterations = 16;
  options.modes = {"mmsg", "ring"};
  options.mode = "mmsg";
  bare::parse_or_exit(options, argc, argv);
  return bare::datagram_bulk(options, bare::frame_ends(options.mode == "ring"));
}
