// Question: how fast do large messages go over UDP when the kernel cuts and joins datagrams
// (UDP_SEGMENT, UDP_GRO), with nothing else around them? Over the wire of benchmarks/wire.py,
// else over the loopback device.
#include "benchmarks/bare/udp_ends.h"

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "udp_bulk";
  options.size = 64u << 20;
  options.iterations = 16;
  options.modes = {"joined", "single"};
  options.mode = "joined";
  bare::parse_or_exit(options, argc, argv);
  return bare::datagram_bulk(options, bare::udp_ends(options.mode == "joined"));
}
