// Question: what does it cost to wake a peer that sleeps on a Unix stream
// socket, with one byte? Both sides sleep, so a half round trip is one wake.
#include "benchmarks/bare/socket_pingpong.h"

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "unix_byte_wake";
  options.modes = {"epoll", "poll", "blocking"};
  options.mode = "epoll";
  options.size = 1;
  options.iterations = 10'000;
  bare::parse_or_exit(options, argc, argv);
  const auto waiting = options.mode == "poll"       ? bare::Waiting::kPoll
                       : options.mode == "blocking" ? bare::Waiting::kBlocking
                                                    : bare::Waiting::kEpoll;
  return bare::socket_pingpong(options, bare::Family::kUnix, waiting);
}
