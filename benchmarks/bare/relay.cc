// A line between two interfaces of this network namespace: forwards every frame both ways, at a
// rate, after a delay, and loses some. benchmarks/wire.py joins two networks with it. Says in the
// end how well it kept to that. Knows nothing of what travels.
//
// A frame waits until the line has carried those before it, takes its length by the rate, and
// leaves the delay after that. What finds more than the queue holds is dropped, as a router does.
// The rate counts what tc's TBF counts: the frame with its Ethernet header, without preamble, check
// sequence and gap.
#include <linux/if_ether.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "benchmarks/bare/packet_socket.h"
#include "benchmarks/bare/program.h"

namespace {

using bare::die;

struct Line {
  std::string near, far;
  uint64_t mtu = 1500;
  uint64_t bits_per_second = 1'000'000'000;
  uint64_t delay_ns = 0;
  uint64_t queue_bytes = 0;
  uint64_t lost_one_in = 0;  // 0: none is
  uint64_t seed = 1;
};

// struct virtio_net_hdr (Virtual I/O Device 1.2, 5.1.6), which precedes each frame; the kernel's
// header of it is no C++.
constexpr size_t kVirtioHeader = 10;

// Frames under way each way: 80 ms of full frames at 1 Gbit/s are 6,600.
constexpr size_t kPlaces = 32'768;
constexpr size_t kBatch = 64;
// Between two looks while frames flow: adds as much to the delay at most, and saves a call for each
// frame.
constexpr uint64_t kTickNs = 40'000;
// Without a frame for so long, it sleeps until one comes.
constexpr uint64_t kIdleNs = 2'000'000;
constexpr size_t kLateBuckets = 4096;  // of 1 us each; the last has all that is later

volatile sig_atomic_t ended = 0;

int packet_socket_of(const std::string& interface) {
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) die("socket(AF_PACKET)");
  const int one = 1;
  // Checksums that the sender's kernel has left to the card stay so.
  if (setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) != 0) die("PACKET_VNET_HDR");
  if (setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one) != 0)
    die("PACKET_IGNORE_OUTGOING");
  if (setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one) != 0)
    die("PACKET_QDISC_BYPASS");
  bare::enlarge(fd);
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = __builtin_bswap16(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(if_nametoindex(interface.c_str()));
  if (address.sll_ifindex == 0) die(interface.c_str());
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) die("bind");
  return fd;
}

// One way.
class Way {
 public:
  Way(const Line& line, int in, int out, uint64_t seed)
      : line_(line),
        in_(in),
        out_(out),
        random_(seed * 0x9e3779b97f4a7c15 + 1),
        place_bytes_(kVirtioHeader + line.mtu + 128),
        memory_(new unsigned char[kPlaces * place_bytes_]),
        frames_(kPlaces),
        late_(kLateBuckets) {}

  // Both return how many frames they moved.
  size_t take(uint64_t now);
  size_t give(uint64_t now);
  bool empty() const { return head_ == tail_; }
  void report(const char* name) const;

  // What the relay itself lost, which the line would not have.
  uint64_t overrun() const { return overrun_ + kernel_drops() + too_long_ + refused_; }

 private:
  struct Frame {
    uint64_t due_ns;
    uint32_t bytes;  // with the virtio header
  };
  unsigned char* place(uint64_t number) { return &memory_[number % kPlaces * place_bytes_]; }
  bool loses();
  void enter(uint64_t from, uint32_t bytes, uint64_t now);
  uint64_t kernel_drops() const;
  uint64_t late_us(double share) const;

  const Line& line_;
  int in_, out_;
  uint64_t random_;
  size_t place_bytes_;
  std::unique_ptr<unsigned char[]> memory_;
  std::vector<Frame> frames_;
  uint64_t head_ = 0, tail_ = 0;  // the next to leave, the next free place
  uint64_t line_free_ns_ = 0;     // when the line has carried all that it took
  uint64_t forwarded_ = 0, bytes_ = 0, lost_ = 0, queue_drops_ = 0;
  uint64_t overrun_ = 0, too_long_ = 0, refused_ = 0;
  mutable uint64_t kernel_drops_ = 0;
  std::vector<uint64_t> late_;
};

bool Way::loses() {
  if (line_.lost_one_in == 0) return false;
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return random_ % line_.lost_one_in == 0;
}

size_t Way::take(uint64_t now) {
  mmsghdr messages[kBatch];
  iovec pieces[kBatch];
  const size_t room = std::min<size_t>(kBatch, kPlaces - (tail_ - head_));
  for (size_t i = 0; i < room; ++i) {
    pieces[i] = {place(tail_ + i), place_bytes_};
    messages[i] = {};
    messages[i].msg_hdr.msg_iov = &pieces[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  if (room == 0) ++overrun_;
  const int got = room == 0 ? 0 : recvmmsg(in_, messages, room, MSG_DONTWAIT, nullptr);
  if (got < 0 && errno != EAGAIN && errno != EINTR && errno != ENETDOWN) die("recvmmsg");
  const uint64_t first = tail_;
  for (int i = 0; i < got; ++i) {
    if ((messages[i].msg_hdr.msg_flags & MSG_TRUNC) != 0) {
      ++too_long_;
    } else {
      enter(first + static_cast<uint64_t>(i), messages[i].msg_len, now);
    }
  }
  return got > 0 ? static_cast<size_t>(got) : 0;
}

// The frame at place `from` is behind all that are kept, or where the next belongs.
void Way::enter(uint64_t from, uint32_t bytes, uint64_t now) {
  const uint64_t length = bytes - kVirtioHeader;
  const uint64_t start = std::max(now, line_free_ns_);
  const uint64_t takes = length * 8'000'000'000 / line_.bits_per_second;
  if ((start - now) * (line_.bits_per_second / 1000) / 8'000'000 > line_.queue_bytes) {
    ++queue_drops_;
    return;
  }
  line_free_ns_ = start + takes;
  if (loses()) {  // on the line: it took its time there
    ++lost_;
    return;
  }
  if (from != tail_) std::memcpy(place(tail_), place(from), bytes);
  frames_[tail_ % kPlaces] = {line_free_ns_ + line_.delay_ns, bytes};
  ++tail_;
}

size_t Way::give(uint64_t now) {
  mmsghdr messages[kBatch];
  iovec pieces[kBatch];
  size_t count = 0;
  while (count < kBatch && head_ + count < tail_ &&
         frames_[(head_ + count) % kPlaces].due_ns <= now) {
    const uint64_t number = head_ + count;
    const uint64_t late = (now - frames_[number % kPlaces].due_ns) / 1000;
    ++late_[std::min<uint64_t>(late, kLateBuckets - 1)];
    pieces[count] = {place(number), frames_[number % kPlaces].bytes};
    messages[count] = {};
    messages[count].msg_hdr.msg_iov = &pieces[count];
    messages[count].msg_hdr.msg_iovlen = 1;
    ++count;
  }
  size_t sent = 0;
  while (sent < count) {
    const int done = sendmmsg(out_, messages + sent, static_cast<unsigned>(count - sent), 0);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) ++refused_;  // that one frame: the interface is going down, or has no room
    sent += done > 0 ? static_cast<size_t>(done) : 1;
  }
  for (size_t i = 0; i < count; ++i) bytes_ += frames_[(head_ + i) % kPlaces].bytes;
  bytes_ -= count * kVirtioHeader;
  head_ += count;
  forwarded_ += count;
  return count;
}

// What found the socket full. Reading them sets the kernel's count to zero.
uint64_t Way::kernel_drops() const {
  tpacket_stats stats{};
  socklen_t length = sizeof stats;
  if (getsockopt(in_, SOL_PACKET, PACKET_STATISTICS, &stats, &length) == 0)
    kernel_drops_ += stats.tp_drops;
  return kernel_drops_;
}

uint64_t Way::late_us(double share) const {
  uint64_t left = static_cast<uint64_t>(share * static_cast<double>(forwarded_));
  for (size_t us = 0; us < kLateBuckets; ++us) {
    if (late_[us] > left) return us;
    left -= late_[us];
  }
  return kLateBuckets;
}

void Way::report(const char* name) const {
  std::printf(
      "\"%s\":{\"frames\":%llu,\"bytes\":%llu,\"lost\":%llu,\"queue_drops\":%llu,\"overrun\":%llu,"
      "\"late_us\":{\"p50\":%llu,\"p99\":%llu,\"p999\":%llu}}",
      name, static_cast<unsigned long long>(forwarded_), static_cast<unsigned long long>(bytes_),
      static_cast<unsigned long long>(lost_), static_cast<unsigned long long>(queue_drops_),
      static_cast<unsigned long long>(overrun()), static_cast<unsigned long long>(late_us(0.5)),
      static_cast<unsigned long long>(late_us(0.99)),
      static_cast<unsigned long long>(late_us(0.999)));
}

Line parsed(int argc, char** argv) {
  Line line;
  uint64_t delay_us = 0;
  CLI::App app{"relay: a line between two interfaces, with a rate, a delay and loss"};
  app.add_option("near", line.near, "one interface")->required();
  app.add_option("far", line.far, "the other")->required();
  app.add_option("--mtu", line.mtu, "of both")->check(CLI::Range(68, 65535));
  app.add_option("--bits-per-second", line.bits_per_second, "each way")
      ->check(CLI::Range(uint64_t{1'000'000}, uint64_t{100'000'000'000}));
  app.add_option("--delay-us", delay_us, "one way")->check(CLI::Range(0, 1'000'000));
  app.add_option("--queue-bytes", line.queue_bytes,
                 "that wait for the line at most; 0: rate times round trip, 300,000 at least");
  app.add_option("--lost-one-in", line.lost_one_in, "frames lost on the line; 0: none");
  app.add_option("--seed", line.seed, "of the loss");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : bare::kExitUsage);
  }
  line.delay_ns = delay_us * 1000;
  if (line.queue_bytes == 0) {
    const uint64_t round_trip = line.bits_per_second / 8 * 2 * delay_us / 1'000'000;
    line.queue_bytes = std::max<uint64_t>(round_trip, 300'000);
  }
  return line;
}

void run(Way& to_far, Way& to_near, int near, int far) {
  uint64_t last_frame = 0;
  while (ended == 0) {
    const uint64_t now = bare::now_ns();
    const size_t moved =
        to_far.take(now) + to_near.take(now) + to_far.give(now) + to_near.give(now);
    if (moved >= kBatch) continue;  // there may be more
    if (moved > 0) last_frame = now;
    if (to_far.empty() && to_near.empty() && now - last_frame > kIdleNs) {
      pollfd both[2] = {{near, POLLIN, 0}, {far, POLLIN, 0}};
      (void)poll(both, 2, 100);
    } else {
      const timespec tick{0, kTickNs};
      nanosleep(&tick, nullptr);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Line line = parsed(argc, argv);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_TIMERSLACK, 1000);
  // The programs at the ends must not make the line late. Without the right it is a busy machine's.
  const sched_param first{.sched_priority = 1};
  (void)sched_setscheduler(0, SCHED_FIFO, &first);
  signal(SIGTERM, [](int) { ended = 1; });
  const int near = packet_socket_of(line.near), far = packet_socket_of(line.far);
  Way to_far(line, near, far, line.seed), to_near(line, far, near, line.seed + 1);
  std::puts("forwards");
  std::fflush(stdout);
  run(to_far, to_near, near, far);
  std::printf("{\"name\":\"relay\",\"queue_bytes\":%llu,",
              static_cast<unsigned long long>(line.queue_bytes));
  to_far.report("to_far");
  std::printf(",");
  to_near.report("to_near");
  std::puts("}");
  if (to_far.overrun() + to_near.overrun() == 0) return 0;
  std::fputs("relay: it lost frames by itself: the figures of this line do not hold\n", stderr);
  return bare::kExitFailed;
}
