// Question: from which size on does it pay to let the kernel send from the caller's own pages
// (MSG_ZEROCOPY), and did it not copy them all the same?
//
// --mode copied    send(2): the kernel copies into its own memory
//        zerocopy  MSG_ZEROCOPY: it takes references to the pages and says on the socket's error
//        queue when it has
//                  let go of them (Documentation/networking/msg_zerocopy.rst); a buffer is written
//                  again only then
//
// Both send from the same buffers in turns. A device that has to look at the bytes makes the kernel
// copy late (the loopback device and veth do: the receiver is here): the notification then says
// SO_EE_CODE_ZEROCOPY_COPIED, and `kernel_copied_percent` is the share of those.
//
// Between two machines (or guests of the lab, whose card may take frames in pieces) the receiver is
// started with BARE_SERVE=PORT in its environment and serves until it is ended; the sender with
// BARE_TO=ADDRESS:PORT. The sender then prints the line: its own CPU, and with
// `machine_cpu_seconds_per_gb` what its machine used altogether, interrupts included.
#include <time.h>  // before errqueue.h, which needs it and does not say so

#include <arpa/inet.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <vector>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"
#include "benchmarks/bare/sockets.h"

namespace bare {
namespace {

// A timed window moves at least this much (stream_bulk.cc), from so many bytes of buffers: more
// than the second-level cache.
constexpr uint64_t kWindowBytes = 64u << 20;
constexpr uint64_t kBufferBytes = 16u << 20;
// At least so many: the first meets cold memory.
constexpr uint64_t kLeastWindows = 4;

struct Shared {
  uint64_t notifications = 0, copied = 0;
  double machine_seconds = 0, send_seconds = 0;  // of the windows, at the sender
};

// All processors' time that was not idle, to a hundredth of a second (proc(5)).
double machine_busy_seconds() {
  std::ifstream stat("/proc/stat");
  std::string name;
  std::array<double, 8> ticks{};  // user nice system idle iowait irq softirq steal
  stat >> name;
  for (double& each : ticks) stat >> each;
  const double busy = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6];
  return busy / static_cast<double>(sysconf(_SC_CLK_TCK));
}

struct Plan {
  explicit Plan(const Options& options)
      : messages(std::clamp<uint64_t>(kWindowBytes / options.size, 1, 1u << 14)),
        windows(std::max<uint64_t>(options.iterations / messages, kLeastWindows)),
        buffers(std::clamp<uint64_t>(kBufferBytes / options.size, 2, 256)) {}
  uint64_t messages, windows, buffers;
};

// What the kernel says on the socket's error queue about the pages that it was lent.
class Lender {
 public:
  Lender(int socket, Shared& shared) : socket_(socket), shared_(shared) {
    const int yes = 1;
    if (setsockopt(socket, SOL_SOCKET, SO_ZEROCOPY, &yes, sizeof yes) != 0) die("SO_ZEROCOPY");
  }
  void send_whole(const unsigned char* data, size_t bytes) {
    for (size_t sent = 0; sent < bytes;) {
      const ssize_t more = ::send(socket_, data + sent, bytes - sent, MSG_ZEROCOPY);
      if (more > 0) {
        sent += static_cast<size_t>(more);
        ++lent_;
      } else if (errno == ENOBUFS) {  // too many notifications are due (optmem_max), or too many
                                      // pages pinned (ulimit -l)
        if (lent_ == returned_) refused();
        wait_for(returned_ + 1);
      } else {
        die("send, MSG_ZEROCOPY");
      }
    }
  }
  // One notification for each call that sent something, in the order of TCP's acknowledgements.
  uint64_t lent() const { return lent_; }
  void wait_for(uint64_t returned) {
    while (returned_ < returned) {
      pollfd errors{socket_, 0, 0};  // POLLERR is always told
      if (poll(&errors, 1, -1) < 0) die("poll");
      take_notifications();
    }
  }

 private:
  [[noreturn]] static void refused() {
    std::fprintf(stderr,
                 "tcp_zerocopy: the kernel lends no page: ulimit -l, or net.core.optmem_max\n");
    std::_Exit(kExitNothingToRunOn);
  }
  void take_notifications() {
    alignas(cmsghdr) std::array<char, 128> control;
    msghdr message{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (recvmsg(socket_, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
      if (errno != EAGAIN) die("recvmsg, MSG_ERRQUEUE");
      return;
    }
    for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
         each = CMSG_NXTHDR(&message, each)) {
      sock_extended_err said;
      std::memcpy(&said, CMSG_DATA(each), sizeof said);
      if (said.ee_origin != SO_EE_ORIGIN_ZEROCOPY || said.ee_errno != 0)
        die("an error on the error queue");
      const uint64_t calls = uint64_t{said.ee_data} - said.ee_info + 1;
      returned_ += calls;
      shared_.notifications += calls;
      if ((said.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0) shared_.copied += calls;
    }
  }
  int socket_;
  Shared& shared_;
  uint64_t lent_ = 0, returned_ = 0;
};

void send_windows(const Options& options, const Plan& plan, int socket, Lender* lender,
                  Shared& shared, PeerReport& report) {
  auto* memory = static_cast<unsigned char*>(map_private(plan.buffers * options.size));
  std::vector<uint64_t> free_after(plan.buffers, 0);  // the notification that gives a buffer back
  const size_t stamp = std::min<size_t>(options.size, sizeof(uint32_t));
  for (uint64_t window = 0; window < plan.windows; ++window) {
    for (uint64_t i = 0; i < plan.buffers; ++i)
      fill_pattern(memory + i * options.size, options.size, static_cast<uint32_t>(window));
    if (options.corrupt)
      flip_one_bit(memory + (plan.messages - 1) % plan.buffers * options.size, options.size);
    unsigned char go;
    read_all(socket, &go, 1);
    const double cpu_before = process_cpu_seconds(), machine_before = machine_busy_seconds();
    const uint64_t start = now_ns();
    for (uint64_t message = 0; message < plan.messages; ++message) {
      burn_ns(options.slow_ns);
      const uint64_t place = message % plan.buffers;
      unsigned char* payload = memory + place * options.size;
      if (lender != nullptr) lender->wait_for(free_after[place]);
      const auto number = static_cast<uint32_t>(window * plan.messages + message);
      std::memcpy(payload, &number, stamp);
      if (lender != nullptr) {
        lender->send_whole(payload, options.size);
        free_after[place] = lender->lent();
      } else {
        write_all(socket, payload, options.size);
      }
    }
    if (lender != nullptr) lender->wait_for(lender->lent());
    report.cpu_seconds += process_cpu_seconds() - cpu_before;
    shared.send_seconds += static_cast<double>(now_ns() - start) * 1e-9;
    shared.machine_seconds += machine_busy_seconds() - machine_before;
  }
  write_all(socket, "", 1);  // the report is complete
}

void send_in_mode(const Options& options, const Plan& plan, int socket, Shared& shared,
                  PeerReport& report) {
  if (options.mode != "zerocopy")
    return send_windows(options, plan, socket, nullptr, shared, report);
  Lender lender(socket, shared);
  send_windows(options, plan, socket, &lender, shared, report);
}

void add_notifications(JsonLine& line, const Shared& shared) {
  if (shared.notifications == 0) return;
  line.number("notifications", static_cast<double>(shared.notifications))
      .number("kernel_copied_percent",
              100 * static_cast<double>(shared.copied) / static_cast<double>(shared.notifications));
}

struct Received {
  Samples seconds;
  uint64_t wrong = 0;
  double total = 0, cpu = 0;
};

Received receive_windows(const Options& options, const Plan& plan, int socket) {
  auto* payload = static_cast<unsigned char*>(map_private(options.size));
  const size_t stamp = std::min<size_t>(options.size, sizeof(uint32_t));
  Received received;
  for (uint64_t window = 0; window < plan.windows; ++window) {
    const double cpu_before = process_cpu_seconds();
    const uint64_t start = now_ns();
    write_all(socket, "", 1);
    for (uint64_t message = 0; message < plan.messages; ++message) {
      read_all(socket, payload, options.size);
      const auto number = static_cast<uint32_t>(window * plan.messages + message);
      received.wrong += std::memcmp(payload, &number, stamp) != 0 ? 1 : 0;
    }
    const double took = static_cast<double>(now_ns() - start) * 1e-9;
    received.cpu += process_cpu_seconds() - cpu_before;
    // The last one whole; the stamp of all was looked at as they came.
    const uint32_t first = pattern_word(0, static_cast<uint32_t>(window));
    std::memcpy(payload, &first, stamp);
    received.wrong += count_mismatches(payload, options.size, static_cast<uint32_t>(window));
    std::memset(payload, 0, options.size);
    received.seconds.add(took / static_cast<double>(plan.messages));
    received.total += took;
  }
  unsigned char reported;
  read_all(socket, &reported, 1);
  return received;
}

int refuse_wrong(const Options& options, uint64_t wrong) {
  return refuse(options, std::to_string(wrong) + " wrong words");
}

int measure(const Options& options, const Plan& plan, int socket, const Shared& shared,
            const PeerReport& report) {
  Received received = receive_windows(options, plan, socket);
  if (received.wrong != 0) return refuse_wrong(options, received.wrong);
  JsonLine line(options);
  line.moved(received.seconds, received.total, received.cpu + report.cpu_seconds);
  add_notifications(line, shared);
  return line.print_verified();
}

// Between two machines. The sender begins with its size and iterations; what was wrong comes back.
int tcp_socket(sockaddr_in& address, const char* host, const char* port) {
  const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (made < 0) die("socket");
  address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::atoi(port)));
  if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die("inet_pton");
  const int yes = 1;
  if (setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0) die("SO_REUSEADDR");
  if (setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) != 0) die("TCP_NODELAY");
  return made;
}

[[noreturn]] void serve(Options options, const char* port) {
  sockaddr_in address;
  const int listener = tcp_socket(address, "0.0.0.0", port);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) die("bind");
  if (listen(listener, 1) != 0) die("listen");
  for (;;) {
    const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) die("accept");
    // A child each, so that what it maps goes with it.
    const pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
      std::array<uint64_t, 2> asked;
      read_all(socket, asked.data(), sizeof asked);
      options.size = asked[0];
      options.iterations = asked[1];
      const uint64_t wrong = receive_windows(options, Plan(options), socket).wrong;
      write_all(socket, &wrong, sizeof wrong);
      std::_Exit(0);
    }
    close(socket);
    waitpid(child, nullptr, 0);
  }
}

int send_to(const Options& options, const Plan& plan, const std::string& to) {
  const size_t colon = to.find(':');
  if (colon == std::string::npos) {
    std::fprintf(stderr, "tcp_zerocopy: BARE_TO is not ADDRESS:PORT\n");
    return kExitUsage;
  }
  sockaddr_in address;
  const int socket = tcp_socket(address, to.substr(0, colon).c_str(), to.c_str() + colon + 1);
  if (connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) die("connect");
  const std::array<uint64_t, 2> asked{options.size, options.iterations};
  write_all(socket, asked.data(), sizeof asked);
  Shared shared;
  PeerReport report;
  send_in_mode(options, plan, socket, shared, report);
  uint64_t wrong;
  read_all(socket, &wrong, sizeof wrong);
  if (wrong != 0) return refuse_wrong(options, wrong);
  Samples seconds;
  seconds.add(shared.send_seconds / static_cast<double>(options.iterations));
  JsonLine line(options);
  line.moved(seconds, shared.send_seconds, report.cpu_seconds);
  const double gigabytes = static_cast<double>(options.size * options.iterations) * 1e-9;
  line.number("machine_cpu_seconds_per_gb", shared.machine_seconds / gigabytes);
  add_notifications(line, shared);
  return line.print_verified();
}

int run(Options options) {
  if (const char* port = std::getenv("BARE_SERVE")) serve(options, port);
  const Plan plan(options);
  options.iterations = plan.windows * plan.messages;
  if (const char* to = std::getenv("BARE_TO")) return send_to(options, plan, to);
  auto* shared = new (map_shared(sizeof(Shared))) Shared;
  const SocketPair pair = connected_pair(Family::kTcp);
  return run_pair(
      options,
      [&](PeerReport& report) {
        send_in_mode(options, plan, keep(pair, true), *shared, report);
        return 0;
      },
      [&](const PeerReport& report) {
        return measure(options, plan, keep(pair, false), *shared, report);
      });
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "tcp_zerocopy";
  options.size = 1u << 20;
  options.iterations = 256;
  options.modes = {"copied", "zerocopy"};
  options.mode = "zerocopy";
  bare::parse_or_exit(options, argc, argv);
  return bare::run(options);
}
