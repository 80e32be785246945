// Question: what does a small raw Ethernet frame cost one way, when both sides sleep in poll
// (blocking), when they ask the socket again and again (spinning), when they look at a ring that
// the kernel fills (ring), and when they sleep but are woken for every frame of the interface,
// whoever it is for (unfiltered)? Over the wire of benchmarks/wire.py.
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "benchmarks/bare/packet_socket.h"
#include "benchmarks/bare/patience.h"
#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"

namespace bare {
namespace {

constexpr uint64_t kWarmUpRounds = 200;

constexpr const char* kName = "frame_pingpong";

class Side {
 public:
  Side(const Options& options, End end)
      : end_(packet_end(end, options.mode == "unfiltered")),
        size_(options.size),
        sleeps_(options.mode == "blocking" || options.mode == "unfiltered") {
    if (options.mode == "ring") ring_ = std::make_unique<ReceiveRing>(end_.socket, 2048, 1024);
  }
  void send(const unsigned char* data) {
    if (sendto(end_.socket, data, size_, 0, reinterpret_cast<sockaddr*>(&end_.to),
               sizeof end_.to) != static_cast<ssize_t>(size_))
      die("sendto");
  }
  void receive(unsigned char* data) {
    Patience patience(kName);
    while (!try_receive(data)) {
      pollfd interest{end_.socket, POLLIN, 0};
      if (!sleeps_) {
        patience.spin();
      } else if (const int ready = poll(&interest, 1, kPatienceMs); ready <= 0) {
        ready < 0 ? die("poll") : lost(kName);
      }
    }
  }

  // Frames that the socket gave us.
  uint64_t seen() const { return seen_; }

 private:
  bool try_receive(unsigned char* data) {
    if (ring_ != nullptr) {
      size_t bytes = 0;
      const unsigned char* frame = ring_->next(bytes);
      if (frame == nullptr) return false;
      ++seen_;
      std::memcpy(data, frame, std::min<size_t>(bytes, size_));
      ring_->release();
      return true;
    }
    while (true) {
      sockaddr_ll from{};
      socklen_t length = sizeof from;
      const ssize_t got = recvfrom(end_.socket, data, size_, MSG_DONTWAIT,
                                   reinterpret_cast<sockaddr*>(&from), &length);
      seen_ += got >= 0 ? 1 : 0;
      if (got >= 0 && from.sll_protocol == end_.to.sll_protocol) return true;
      if (got < 0 && errno == EAGAIN) return false;
      if (got < 0) die("recv");  // else it is somebody else's
    }
  }

  PacketEnd end_;
  size_t size_;
  bool sleeps_;
  uint64_t seen_ = 0;
  std::unique_ptr<ReceiveRing> ring_;
};

int echo(const Options& options, Side& side, PeerReport& report) {
  auto* payload = static_cast<unsigned char*>(map_private(options.size));
  for (uint64_t i = 0; i < kWarmUpRounds + options.iterations; ++i) {
    side.receive(payload);
    burn_ns(options.slow_ns);
    if (options.corrupt && i == kWarmUpRounds + options.iterations / 2)
      flip_one_bit(payload, options.size);
    // Read by the other side after this answer has come.
    if (i + 1 == kWarmUpRounds + options.iterations) report.cpu_seconds = process_cpu_seconds();
    side.send(payload);
  }
  return 0;
}

int measure(const Options& options, Side& side, const PeerReport& report) {
  auto* sent = static_cast<unsigned char*>(map_private(options.size));
  auto* received = static_cast<unsigned char*>(map_private(options.size));
  Samples one_way_ns;
  uint64_t wrong = 0, total_ns = 0;
  for (uint64_t i = 0; i < kWarmUpRounds + options.iterations; ++i) {
    const auto seed = static_cast<uint32_t>(i);
    fill_pattern(sent, options.size, seed);
    sent[0] = static_cast<unsigned char>(seed * 7 + 1);
    const uint64_t start = now_ns();
    side.send(sent);
    side.receive(received);
    const uint64_t took = now_ns() - start;
    if (i < kWarmUpRounds) continue;
    one_way_ns.add(static_cast<double>(took) / 2);
    total_ns += took;
    for (size_t at = 0; at < options.size; ++at) wrong += received[at] != sent[at] ? 1 : 0;
  }
  if (wrong != 0) return refuse(options, std::to_string(wrong) + " wrong bytes");
  one_way_ns.sort();
  return JsonLine(options)
      .raw("one_way_ns", one_way_ns.json())
      .number("bytes_per_second", 2.0 * static_cast<double>(options.iterations * options.size) /
                                      (static_cast<double>(total_ns) * 1e-9))
      .number("cpu_seconds", process_cpu_seconds() + report.cpu_seconds)
      .number("frames_seen_per_round", static_cast<double>(side.seen()) /
                                           static_cast<double>(kWarmUpRounds + options.iterations))
      .print_verified();
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  using namespace bare;
  Options options;
  options.name = "frame_pingpong";
  options.modes = {"blocking", "spinning", "ring", "unfiltered"};
  options.mode = "ring";
  options.iterations = 10'000;
  parse_or_exit(options, argc, argv);
  if (options.size > 1500) {
    std::fprintf(stderr,
                 "frame_pingpong: --size is of one frame, at most 1500 (for example: --size 64)\n");
    return kExitUsage;
  }
  Side far(options, End::kFar), near(options, End::kNear);
  return run_pair(
      options, [&](PeerReport& report) { return echo(options, far, report); },
      [&](PeerReport& report) { return measure(options, near, report); });
}
