// Question: what does TCP itself make of a long line (benchmarks/wire.py --delay), with one
// connection and with several, and with socket buffers as the kernel tunes them or fixed?
//
// The near end receives: it says what has come, from the moment that it was ready.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "benchmarks/bare/line_meter.h"
#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"
#include "benchmarks/bare/sockets.h"

namespace {

// Of one write; each carries its number in its first bytes.
constexpr size_t kBlockBytes = 1u << 20;

struct Mode {
  size_t streams;
  int buffer_bytes;  // 0: the kernel tunes them
};

Mode mode_of(const std::string& name) {
  if (name == "fixed") return {1, 512 << 10};
  const size_t digit = name.find_first_of("0123456789");
  return {digit == std::string::npos ? 1 : std::stoul(name.substr(digit)), 0};
}

void fix_buffers(int fd, int bytes) {
  if (bytes == 0) return;
  if (setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) != 0) bare::die("SO_SNDBUF");
  if (setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) != 0) bare::die("SO_RCVBUF");
}

// Until the peer closes.
void send_blocks(int fd, std::vector<unsigned char> block, size_t per_call) {
  for (uint32_t number = 0;; ++number) {
    std::memcpy(block.data(), &number, sizeof number);
    for (size_t at = 0; at < block.size();) {
      const size_t length = std::min(block.size() - at, per_call);
      const ssize_t sent = send(fd, block.data() + at, length, MSG_NOSIGNAL);
      if (sent <= 0) return;
      at += static_cast<size_t>(sent);
    }
  }
}

// Until `over`; wrong blocks are counted.
void receive_blocks(int fd, std::atomic<uint64_t>& bytes, const std::atomic<bool>& over,
                    std::atomic<uint64_t>& wrong) {
  std::vector<unsigned char> block(kBlockBytes);
  for (uint32_t number = 0; !over; ++number) {
    for (size_t at = 0; at < block.size() && !over;) {
      const ssize_t got = read(fd, block.data() + at, block.size() - at);
      if (got <= 0) return;
      at += static_cast<size_t>(got);
      bytes += static_cast<uint64_t>(got);
    }
    if (over) return;
    uint32_t stamp;
    std::memcpy(&stamp, block.data(), sizeof stamp);
    if (stamp != number) ++wrong;
    const uint32_t first = bare::pattern_word(0, 0);
    std::memcpy(block.data(), &first, sizeof first);
    if (number == 0) wrong += bare::count_mismatches(block.data(), block.size(), 0);
  }
}

int send_all(const bare::Options& options, const std::vector<bare::SocketPair>& pairs,
             bare::PeerReport& report) {
  std::vector<unsigned char> block(kBlockBytes);
  bare::fill_pattern(block.data(), block.size(), 0);
  if (options.corrupt) bare::flip_one_bit(block.data(), block.size());
  std::vector<std::thread> threads;
  unsigned char go;
  for (const bare::SocketPair& pair : pairs) {
    const int fd = bare::keep(pair, true);
    if (pair.peer_side == pairs[0].peer_side) bare::read_all(fd, &go, 1);
    threads.emplace_back(send_blocks, fd, block, kBlockBytes);
  }
  for (std::thread& thread : threads) thread.join();
  report.cpu_seconds = bare::process_cpu_seconds();
  return 0;
}

int receive_all(const bare::Options& options, const std::vector<bare::SocketPair>& pairs,
                uint64_t seconds, const bare::PeerReport& report) {
  std::atomic<uint64_t> bytes = 0, wrong = 0;
  std::atomic<bool> over = false;
  std::vector<std::thread> threads;
  for (const bare::SocketPair& pair : pairs) {
    threads.emplace_back(receive_blocks, bare::keep(pair, false), std::ref(bytes), std::cref(over),
                         std::ref(wrong));
  }
  const double before = bare::process_cpu_seconds();
  bare::LineMeter meter(seconds);
  bare::write_all(pairs[0].measuring_side, "", 1);
  while (meter.saw(bytes)) usleep(1000);
  over = true;
  const double cpu = bare::process_cpu_seconds() - before;
  for (const bare::SocketPair& pair : pairs) shutdown(pair.measuring_side, SHUT_RDWR);
  for (std::thread& thread : threads) thread.join();
  for (const bare::SocketPair& pair : pairs) close(pair.measuring_side);
  if (wrong != 0) return bare::refuse(options, std::to_string(wrong) + " wrong blocks");
  // The sender's share is known when it has ended; it ends by our closing.
  while (report.cpu_seconds == 0) usleep(1000);
  return meter.print(options, cpu + report.cpu_seconds);
}

}  // namespace

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "line_bulk";
  options.size = 1;
  options.iterations = 8;
  options.modes = {"tuned", "fixed", "streams2", "streams4", "streams8", "streams16"};
  options.mode = "tuned";
  bare::parse_or_exit(options, argc, argv);
  const Mode mode = mode_of(options.mode);
  std::vector<bare::SocketPair> pairs;
  for (size_t i = 0; i < mode.streams; ++i) {
    pairs.push_back(bare::connected_pair(bare::Family::kTcp));
    fix_buffers(pairs.back().peer_side, mode.buffer_bytes);
    fix_buffers(pairs.back().measuring_side, mode.buffer_bytes);
  }
  return bare::run_pair(
      options, [&](bare::PeerReport& report) { return send_all(options, pairs, report); },
      [&](bare::PeerReport& report) {
        return receive_all(options, pairs, options.iterations, report);
      });
}
