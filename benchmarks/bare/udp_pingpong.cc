// Question: what does a small message cost one way as a UDP datagram, with no protocol above it:
// nothing is acknowledged, so a datagram that is lost ends the run by its time limit.
#include <cstdio>

#include "benchmarks/bare/socket_pingpong.h"

int main(int argc, char** argv) {
  // What an IPv4 datagram has room for: 65,535 less the headers of IP and UDP.
  constexpr uint64_t kLargestPayload = 65'507;
  bare::Options options;
  options.name = "udp_pingpong";
  options.modes = {"blocking", "spinning", "epoll"};
  options.mode = "blocking";
  options.iterations = 10'000;
  bare::parse_or_exit(options, argc, argv);
  if (options.size > kLargestPayload) {
    std::fprintf(stderr, "udp_pingpong: --size is at most %d, one datagram\n",
                 static_cast<int>(kLargestPayload));
    return bare::kExitUsage;
  }
  const auto waiting = options.mode == "spinning" ? bare::Waiting::kSpinning
                       : options.mode == "epoll"  ? bare::Waiting::kEpoll
                                                  : bare::Waiting::kBlocking;
  return bare::socket_pingpong(options, bare::Family::kUdp, waiting);
}
