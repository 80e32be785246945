// Question: how fast do large messages go over TCP, from preallocated
// memory into preallocated memory, and what CPU time do both sides pay per GB? With --cpu-percent
// it is a flow beside which others are measured.
#include "benchmarks/bare/stream_bulk.h"

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "tcp_bulk";
  options.size = 64u << 20;
  options.iterations = 16;
  options.paces = true;
  options.over_tcp = true;
  options.modes = {"whole", "chunked", "uring"};  // bytes per system call: see sockets.h, uring.h
  options.mode = "whole";
  bare::parse_or_exit(options, argc, argv);
  return bare::stream_bulk(options, bare::Family::kTcp);
}
