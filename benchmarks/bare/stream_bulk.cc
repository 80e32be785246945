// Large messages in timed windows (see stream_bulk.h).
#include "benchmarks/bare/stream_bulk.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/uring.h"

namespace bare {
namespace {

// A timed window moves at least this much, so that its start (one byte from the
// receiver, about 20 us) stays under 0.2 % of it at 3 GB/s.
constexpr uint64_t kWindowBytes = 64u << 20;

struct Plan {
  uint64_t messages_per_window;
  uint64_t windows;
};

Plan plan_for(const Options& options) {
  const uint64_t per_window = std::clamp<uint64_t>(kWindowBytes / options.size, 1, 1u << 20);
  const uint64_t windows = std::max<uint64_t>(options.iterations / per_window, 1);
  return {per_window, windows};
}

// Every message carries its number in its first bytes; the rest is a pattern
// that changes with the window.
uint32_t message_number(const Plan& plan, uint64_t window, uint64_t message) {
  return static_cast<uint32_t>(window * plan.messages_per_window + message);
}

// One end's way to move whole messages.
class Mover {
 public:
  Mover(const Options& options, int socket)
      : socket_(socket), per_call_(options.mode == "chunked" ? kChunkBytes : kWhole) {
    if (options.mode == "uring") ring_.emplace();
  }
  void write(const void* data, size_t bytes) {
    if (!ring_) return write_all(socket_, data, bytes, per_call_);
    ring_->send(socket_, data, bytes);
    ring_->wait(false);
  }
  void read(void* data, size_t bytes) {
    if (!ring_) return read_all(socket_, data, bytes, per_call_);
    ring_->receive(socket_, data, bytes);
    ring_->wait(false);
  }

 private:
  int socket_;
  size_t per_call_;
  std::optional<Uring> ring_;
};

int send_windows(const Options& options, const Plan& plan, int socket, PeerReport& report) {
  auto* payload = static_cast<unsigned char*>(map_private(options.size));
  Mover mover(options, socket);
  const size_t stamp = std::min<size_t>(options.size, sizeof(uint32_t));
  const Pace pace(options.cpu_percent);
  for (uint64_t window = 0; window < plan.windows; ++window) {
    fill_pattern(payload, options.size, static_cast<uint32_t>(window));
    if (options.corrupt) flip_one_bit(payload, options.size);
    unsigned char go;
    read_all(socket, &go, 1);
    const double cpu_before = process_cpu_seconds();
    for (uint64_t message = 0; message < plan.messages_per_window; ++message) {
      burn_ns(options.slow_ns);
      pace.keep();
      const uint32_t number = message_number(plan, window, message);
      std::memcpy(payload, &number, stamp);
      mover.write(payload, options.size);
    }
    report.cpu_seconds += process_cpu_seconds() - cpu_before;
  }
  write_all(socket, "", 1);  // the report is complete
  return 0;
}

// Checks the last message of a window in full (its stamp was checked on arrival).
uint64_t check_rest(unsigned char* payload, size_t size, uint64_t window) {
  const auto seed = static_cast<uint32_t>(window);
  const uint32_t first = pattern_word(0, seed);
  std::memcpy(payload, &first, std::min(size, sizeof first));
  return count_mismatches(payload, size, seed);
}

int receive_windows(const Options& options, const Plan& plan, int socket, PeerReport& report) {
  auto* payload = static_cast<unsigned char*>(map_private(options.size));
  Mover mover(options, socket);
  const size_t stamp = std::min<size_t>(options.size, sizeof(uint32_t));
  Samples seconds;
  uint64_t wrong = 0;
  double total = 0, cpu = 0;
  for (uint64_t window = 0; window < plan.windows; ++window) {
    const double cpu_before = process_cpu_seconds();
    const uint64_t start = now_ns();
    write_all(socket, "", 1);
    for (uint64_t message = 0; message < plan.messages_per_window; ++message) {
      mover.read(payload, options.size);
      const uint32_t number = message_number(plan, window, message);
      wrong += std::memcmp(payload, &number, stamp) != 0 ? 1 : 0;
    }
    const double took = static_cast<double>(now_ns() - start) * 1e-9;
    cpu += process_cpu_seconds() - cpu_before;
    wrong += check_rest(payload, options.size, window);
    std::memset(payload, 0, options.size);
    seconds.add(took / static_cast<double>(plan.messages_per_window));
    total += took;
  }
  unsigned char reported;
  read_all(socket, &reported, 1);
  if (wrong != 0) return refuse(options, std::to_string(wrong) + " wrong words");
  return JsonLine(options)
      .moved(seconds, total, cpu + report.cpu_seconds)
      .number("sender_cpu_seconds", report.cpu_seconds)
      .number("receiver_cpu_seconds", cpu)
      .print_verified();
}

}  // namespace

int stream_bulk(Options options, Family family) {
  const Plan plan = plan_for(options);
  options.iterations = plan.windows * plan.messages_per_window;
  const SocketPair pair = connected_pair(family, options.send_buffer);
  return run_pair(
      options,
      [&](PeerReport& report) { return send_windows(options, plan, keep(pair, true), report); },
      [&](PeerReport& report) {
        return receive_windows(options, plan, keep(pair, false), report);
      });
}

}  // namespace bare
