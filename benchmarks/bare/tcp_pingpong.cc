// Question: what does a small message over loopback TCP cost one way, when both
// sides sleep in recv (blocking) and when neither ever sleeps (spinning)? And by io_uring, which
// sends and waits in one system call?
#include "benchmarks/bare/socket_pingpong.h"

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "tcp_pingpong";
  options.over_tcp = true;
  options.modes = {"blocking", "spinning", "epoll", "uring", "uring_spinning"};
  options.mode = "blocking";
  options.iterations = 10'000;
  bare::parse_or_exit(options, argc, argv);
  const auto waiting = options.mode == "spinning"         ? bare::Waiting::kSpinning
                       : options.mode == "epoll"          ? bare::Waiting::kEpoll
                       : options.mode == "uring"          ? bare::Waiting::kUring
                       : options.mode == "uring_spinning" ? bare::Waiting::kUringSpinning
                                                          : bare::Waiting::kBlocking;
  return bare::socket_pingpong(options, bare::Family::kTcp, waiting);
}
