// The round trip and its four ways to wait (see socket_pingpong.h).
#include "benchmarks/bare/socket_pingpong.h"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/uring.h"

namespace bare {
namespace {

// One side's descriptor and its way to wait.
class Waiter {
 public:
  Waiter(int socket, Waiting waiting) : socket_(socket), waiting_(waiting) {
    if (waiting == Waiting::kUring || waiting == Waiting::kUringSpinning) ring_.emplace();
    if (waiting != Waiting::kEpoll) return;
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    epoll_event interest{};
    interest.events = EPOLLIN;
    if (epoll_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &interest) != 0) die("epoll");
  }
  ~Waiter() {
    if (epoll_ >= 0) close(epoll_);
  }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // With a ring, sent by the next read() or flush().
  void write(const void* data, size_t bytes) {
    ring_ ? ring_->send(socket_, data, bytes) : write_all(socket_, data, bytes);
  }
  void flush() {
    if (ring_) ring_->wait(false);
  }
  void read(void* data, size_t bytes) {
    if (ring_) {
      ring_->receive(socket_, data, bytes);
      return ring_->wait(waiting_ == Waiting::kUringSpinning);
    }
    if (waiting_ == Waiting::kSpinning) return read_all_spinning(socket_, data, bytes);
    sleep_until_readable();
    read_all(socket_, data, bytes);
  }

 private:
  void sleep_until_readable() {
    int ready = 1;
    if (waiting_ == Waiting::kEpoll) {
      epoll_event event;
      do ready = epoll_wait(epoll_, &event, 1, -1);
      while (ready < 0 && errno == EINTR);
    } else if (waiting_ == Waiting::kPoll) {
      pollfd interest{socket_, POLLIN, 0};
      do ready = poll(&interest, 1, -1);
      while (ready < 0 && errno == EINTR);
    }
    if (ready != 1) die("waiting for the peer");
  }

  int socket_;
  Waiting waiting_;
  int epoll_ = -1;
  std::optional<Uring> ring_;
};

// Round trips before the timed ones: TCP leaves slow start, pages and caches fill.
constexpr uint64_t kWarmUpRounds = 200;

int echo(const Options& options, int socket, Waiting waiting, PeerReport& report) {
  Waiter waiter(socket, waiting);
  auto* payload = static_cast<unsigned char*>(map_private(options.size));
  double cpu_before = 0;
  for (uint64_t i = 0; i < kWarmUpRounds + options.iterations; ++i) {
    if (i == kWarmUpRounds) cpu_before = process_cpu_seconds();
    waiter.read(payload, options.size);
    burn_ns(options.slow_ns);
    if (options.corrupt && i == kWarmUpRounds + options.iterations / 2)
      flip_one_bit(payload, options.size);
    waiter.write(payload, options.size);
  }
  waiter.flush();
  report.cpu_seconds = process_cpu_seconds() - cpu_before;
  // The report is read after this byte, which also says that the echo side is done.
  write_all(socket, "", 1);
  return 0;
}

int measure(const Options& options, int socket, Waiting waiting, const PeerReport& report) {
  Waiter waiter(socket, waiting);
  auto* sent = static_cast<unsigned char*>(map_private(options.size));
  auto* received = static_cast<unsigned char*>(map_private(options.size));
  Samples one_way_ns;
  uint64_t wrong = 0, total_ns = 0;
  double cpu_before = 0;
  for (uint64_t i = 0; i < kWarmUpRounds + options.iterations; ++i) {
    const auto seed = static_cast<uint32_t>(i);
    fill_pattern(sent, options.size, seed);
    sent[0] = static_cast<unsigned char>(seed * 7 + 1);  // payloads shorter than a word vary too
    if (i == kWarmUpRounds) cpu_before = process_cpu_seconds();
    const uint64_t start = now_ns();
    waiter.write(sent, options.size);
    waiter.read(received, options.size);
    const uint64_t took = now_ns() - start;
    if (i < kWarmUpRounds) continue;
    one_way_ns.add(static_cast<double>(took) / 2);
    total_ns += took;
    for (size_t at = 0; at < options.size; ++at) wrong += received[at] != sent[at] ? 1 : 0;
  }
  const double cpu = process_cpu_seconds() - cpu_before;  // includes the check of the payload
  unsigned char done;
  read_all(socket, &done, 1);
  if (wrong != 0) return refuse(options, std::to_string(wrong) + " wrong bytes");
  one_way_ns.sort();
  const double bytes = 2.0 * static_cast<double>(options.iterations * options.size);
  return JsonLine(options)
      .raw("one_way_ns", one_way_ns.json())
      .number("bytes_per_second", bytes / (static_cast<double>(total_ns) * 1e-9))
      .number("cpu_seconds", cpu + report.cpu_seconds)
      .print_verified();
}

}  // namespace

int socket_pingpong(const Options& options, Family family, Waiting waiting) {
  const SocketPair pair = connected_pair(family, options.send_buffer);
  return run_pair(
      options, [&](PeerReport& report) { return echo(options, keep(pair, true), waiting, report); },
      [&](PeerReport& report) { return measure(options, keep(pair, false), waiting, report); });
}

}  // namespace bare
