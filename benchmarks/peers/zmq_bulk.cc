// Question: how fast does ZeroMQ move large messages between two processes,
// copied into preallocated memory as a user with a destination must?
//
// A PAIR of sockets, one message at a time asked for by a one-byte request, so that
// no unbounded queue hides the cost.
#include <unistd.h>
#include <zmq.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"

namespace bare {
namespace {

struct Meeting {
  std::atomic<bool> bound{false};
  char endpoint[256] = {};
};

void check(int result, const char* what) {
  if (result < 0) die(what);
}

// zmq_msg_init_data: the message refers to the payload, no copy at the sender's API.
void keep_payload(void*, void*) {}

int serve(const Options& options, Meeting& meeting) {
  void* context = zmq_ctx_new();
  void* socket = zmq_socket(context, ZMQ_PAIR);
  const std::string wanted = options.mode == "ipc"
                                 ? "ipc://@sluice-zmq-bulk-" + std::to_string(getppid())
                                 : std::string("tcp://127.0.0.1:*");
  check(zmq_bind(socket, wanted.c_str()), "zmq_bind");
  size_t length = sizeof meeting.endpoint;
  check(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, meeting.endpoint, &length), "ZMQ_LAST_ENDPOINT");
  meeting.bound.store(true);
  auto* payload = static_cast<unsigned char*>(map_private(options.size));
  for (uint64_t i = 0; i <= options.iterations; ++i) {
    fill_pattern(payload, options.size, static_cast<uint32_t>(i));
    if (options.corrupt) flip_one_bit(payload, options.size);
    check(zmq_send(socket, "r", 1, 0), "zmq_send");  // ready
    char request;
    check(zmq_recv(socket, &request, 1, 0), "zmq_recv");
    burn_ns(options.slow_ns);
    zmq_msg_t message;
    check(zmq_msg_init_data(&message, payload, options.size, keep_payload, nullptr), "zmq_msg");
    check(zmq_msg_send(&message, socket, 0), "zmq_msg_send");
    check(zmq_recv(socket, &request, 1, 0), "zmq_recv");  // arrived: the payload may be rewritten
  }
  zmq_close(socket);
  zmq_ctx_term(context);
  return 0;
}

int measure(const Options& options, Meeting& meeting) {
  while (!meeting.bound.load()) usleep(1000);
  void* context = zmq_ctx_new();
  void* socket = zmq_socket(context, ZMQ_PAIR);
  check(zmq_connect(socket, meeting.endpoint), "zmq_connect");
  auto* placed = static_cast<unsigned char*>(map_private(options.size));
  Samples seconds;
  double total = 0;
  uint64_t wrong = 0;
  for (uint64_t i = 0; i <= options.iterations; ++i) {
    char ready;
    check(zmq_recv(socket, &ready, 1, 0), "zmq_recv");
    zmq_msg_t message;
    zmq_msg_init(&message);
    const uint64_t start = now_ns();
    check(zmq_send(socket, "g", 1, 0), "zmq_send");
    check(zmq_msg_recv(&message, socket, 0), "zmq_msg_recv");
    if (zmq_msg_size(&message) == options.size)
      std::memcpy(placed, zmq_msg_data(&message), options.size);
    const double took = static_cast<double>(now_ns() - start) * 1e-9;
    zmq_msg_close(&message);
    check(zmq_send(socket, "a", 1, 0), "zmq_send");
    wrong += count_mismatches(placed, options.size, static_cast<uint32_t>(i));
    if (i == 0) continue;  // warm-up
    seconds.add(took);
    total += took;
  }
  zmq_close(socket);
  zmq_ctx_term(context);
  if (wrong != 0) return refuse(options, std::to_string(wrong) + " wrong words");
  seconds.sort();
  return JsonLine(options)
      .raw("seconds", seconds.json())
      .number("bytes_per_second", static_cast<double>(options.iterations * options.size) / total)
      .number("receiver_cpu_seconds", process_cpu_seconds())
      .print_verified();
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "zmq_bulk";
  options.modes = {"tcp", "ipc"};
  options.mode = "tcp";
  options.size = 64u << 20;
  options.iterations = 8;
  bare::parse_or_exit(options, argc, argv);
  auto* meeting = new (bare::map_shared(sizeof(bare::Meeting))) bare::Meeting;
  return bare::run_pair(
      options, [&](bare::PeerReport&) { return bare::serve(options, *meeting); },
      [&](bare::PeerReport&) { return bare::measure(options, *meeting); });
}
