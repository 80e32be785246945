// What the module costs beside TCP, UDP, packet sockets and soft-RoCE, in one guest and one run:
// half round trips of small messages, a file, system calls and copies of each, alone and beside a
// paced TCP stream, with the interfaces' offloads and without. Rounds are interleaved, the first of
// each is another one every time. Verifies all that crosses; prints no figure if something was
// wrong. Markdown.
//   figures [latency] [files] [calls] [frames] [--rounds N] [--messages N] [--bytes N]
//   [--file-rounds N]
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "tests/module/files.h"
#include "tests/module/lines.h"

using namespace sluice::module_test;

namespace {

struct Plan {
  size_t bytes = 64;
  int messages = 300, rounds = 15, file_rounds = 7;
  bool latency = false, files = false, calls = false, frames = false;
};

constexpr int kWarm = 20;
uint16_t next_port = 6000;

std::string spread(const std::vector<double>& values, const char* format) {
  char text[96];
  std::string one = std::string(format) + ", " + format + " to " + format;
  std::snprintf(text, sizeof(text), one.c_str(), median(values),
                *std::min_element(values.begin(), values.end()),
                *std::max_element(values.begin(), values.end()));
  return text;
}

std::vector<double> ratios(const std::vector<double>& over, const std::vector<double>& under) {
  std::vector<double> out;
  for (size_t i = 0; i < over.size(); ++i) out.push_back(over[i] / under[i]);
  return out;
}

// ---- messages

void echo(Talker& end, const Plan& plan, int messages) {
  for (int i = 0; i < messages; ++i) end.say(end.hear(plan.bytes));
}

std::string text_of(const Plan& plan, int i) {
  return std::string(plan.bytes, static_cast<char>('a' + i % 26));
}

// The median of half a round trip, in us.
double measure(Line line, const Plan& plan) {
  pid_t child = ::fork();
  if (child == 0) {
    pin(1);
    line.b->begin();
    echo(*line.b, plan, plan.messages + kWarm);
    line.b->end();
    ::_exit(0);
  }
  pin(0);
  line.a->begin();
  std::vector<double> samples;
  for (int i = 0; i < plan.messages + kWarm; ++i) {
    std::string text = text_of(plan, i);
    double begin = now_us();
    line.a->say(text);
    bool same = line.a->hear(plan.bytes) == text;
    if (i >= kWarm) samples.push_back((now_us() - begin) / 2);
    if (!same) die("a message came changed");
  }
  line.a->end();
  int status = 0;
  ::waitpid(child, &status, 0);
  if (status != 0) die("the other end");
  return median(samples);
}

// [kind][offloads are off][beside a flow]: the median of each round.
using Rounds = std::vector<double>[kKinds][2][2];

void measure_round(const Place& place, const Plan& plan, int round, Rounds& medians) {
  for (int off = 0; off < 2; ++off) {
    place.offloads(!off);
    for (int flow = 0; flow < 2; ++flow) {
      pid_t other = flow ? start_flow(place.wire()) : 0;
      for (int turn = 0; turn < kKinds; ++turn) {
        auto kind = static_cast<Kind>((turn + round) % kKinds);
        if (usable(kind, place))
          medians[kind][off][flow].push_back(measure(make_line(kind, place, next_port++), plan));
      }
      if (flow) stop_flow(other);
    }
  }
  place.offloads(true);
}

void print_latency(const Place& place, const Plan& plan) {
  Rounds medians;
  for (int round = 0; round < plan.rounds; ++round) measure_round(place, plan, round, medians);
  for (int off = 0; off < 2; ++off) {
    std::printf(
        "\n%zu B, half a round trip in us, offloads %s: median of %d rounds, least to most\n\n| | "
        "alone | beside a flow | grows by (pairs) |\n|---|---|---|---|\n",
        plan.bytes, off ? "off" : "on", plan.rounds);
    for (int kind = 0; kind < kKinds; ++kind) {
      auto& cell = medians[kind][off];
      if (cell[0].empty()) continue;
      std::printf("| %s | %s | %s | %s |\n", name_of(static_cast<Kind>(kind)),
                  spread(cell[0], "%.1f").c_str(), spread(cell[1], "%.1f").c_str(),
                  spread(ratios(cell[1], cell[0]), "%.2f").c_str());
    }
    for (Kind kind : {kModule, kModuleSpin})
      std::printf("%s grows by this much of what TCP grows by, pairs, offloads %s: %s\n",
                  name_of(kind), off ? "off" : "on",
                  spread(ratios(ratios(medians[kind][off][1], medians[kind][off][0]),
                                ratios(medians[kTcp][off][1], medians[kTcp][off][0])),
                         "%.2f")
                      .c_str());
  }
  std::fflush(stdout);
}

// ---- system calls and copies

uint64_t copied(const Place& place, const char* way) {
  return counter(place.wire().a.space, way) + counter(place.wire().b.space, way);
}

void print_calls(const Place& place, const Plan& plan) {
  constexpr int kMessages = 200;
  auto* theirs = static_cast<uint64_t*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::printf(
      "\nsystem calls for a message at both ends together, and copies of each byte that the module "
      "counts\n\n| | calls | in | out |\n|---|---|---|---|\n");
  for (int i = 0; i < kKinds; ++i) {
    auto kind = static_cast<Kind>(i);
    if (!usable(kind, place)) continue;
    Line line = make_line(kind, place, next_port++);
    std::fflush(stdout);
    uint64_t in = copied(place, "bytes_copied_in"), out = copied(place, "bytes_copied_out");
    pid_t child = ::fork();
    if (child == 0) {
      pin(1);
      line.b->begin();
      CallCounter counter;
      echo(*line.b, plan, kMessages);
      *theirs = counter.count();
      line.b->end();
      ::_exit(0);
    }
    pin(0);
    line.a->begin();
    CallCounter counter;
    for (int n = 0; n < kMessages; ++n) {
      line.a->say(text_of(plan, n));
      if (line.a->hear(plan.bytes) != text_of(plan, n)) die("a message came changed");
    }
    uint64_t ours = counter.count();
    line.a->end();
    ::waitpid(child, nullptr, 0);
    double bytes = 2.0 * kMessages * static_cast<double>(plan.bytes);
    std::printf("| %s | %.2f | %.2f | %.2f |\n", name_of(kind),
                static_cast<double>(ours + *theirs) / (2.0 * kMessages),
                static_cast<double>(copied(place, "bytes_copied_in") - in) / bytes,
                static_cast<double>(copied(place, "bytes_copied_out") - out) / bytes);
  }
  ::munmap(theirs, 4096);
  std::printf(
      "\nsystem calls for %zu MiB, and copies of each byte that the module counts\n\n| | who "
      "fetches | who has it | in | out |\n|---|---|---|---|---|\n",
      kFileBytes >> 20);
  for (int i = 0; i < kWays; ++i) {
    auto way = static_cast<Way>(i);
    if (!usable(way, place)) continue;
    std::fflush(stdout);
    uint64_t in = copied(place, "bytes_copied_in"), out = copied(place, "bytes_copied_out");
    Fetched got = fetch_file(way, place, next_port++, true);
    std::printf("| %s | %llu | %llu | %.2f | %.2f |\n", name_of(way),
                static_cast<unsigned long long>(got.calls[0]),
                static_cast<unsigned long long>(got.calls[1]),
                static_cast<double>(copied(place, "bytes_copied_in") - in) / kFileBytes,
                static_cast<double>(copied(place, "bytes_copied_out") - out) / kFileBytes);
  }
  std::fflush(stdout);
}

// ---- files

// Of all processors since the start, in ms: all but idle and waiting.
double busy_ms() {
  std::ifstream text("/proc/stat");
  std::string word;
  double user, nice, system, idle, wait, irq, softirq;
  text >> word >> user >> nice >> system >> idle >> wait >> irq >> softirq;
  return (user + nice + system + irq + softirq) * 1e3 / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

struct Files {
  std::vector<double> us[kWays][2][2];
  double busy[kWays][2][2] = {};
};

void print_files(const Place& place, const Plan& plan, int mtu) {
  Files files;
  const int flows = mtu == 1500 ? 2 : 1;
  for (int round = 0; round < plan.file_rounds; ++round)
    for (int off = 0; off < 2; ++off) {
      place.offloads(!off);
      for (int flow = 0; flow < flows; ++flow) {
        pid_t other = flow ? start_flow(place.wire()) : 0;
        for (int turn = 0; turn < kWays; ++turn) {
          auto way = static_cast<Way>((turn + round) % kWays);
          // The packet peer of the tests knows one MTU.
          if (!usable(way, place) || (way == kByPacket && mtu != 1500)) continue;
          double before = busy_ms();
          files.us[way][off][flow].push_back(fetch_file(way, place, next_port++, false).us);
          files.busy[way][off][flow] += busy_ms() - before;
        }
        if (flow) stop_flow(other);
      }
    }
  place.offloads(true);
  for (int off = 0; off < 2; ++off) {
    std::printf(
        "\n%zu MiB, MTU %d, offloads %s, MB/s: median of %d rounds, least to most; busy: ms of "
        "both processors, set-up and comparison included\n\n| | alone | busy "
        "|%s\n|---|---|---|%s\n",
        kFileBytes >> 20, mtu, off ? "off" : "on", plan.file_rounds,
        flows == 2 ? " beside a flow |" : "", flows == 2 ? "---|" : "");
    for (int way = 0; way < kWays; ++way) {
      auto rate = [&](int flow) {
        std::vector<double> out;
        for (double us : files.us[way][off][flow]) out.push_back(kFileBytes / us);
        return spread(out, "%.1f");
      };
      if (files.us[way][off][0].empty()) continue;
      std::printf("| %s | %s | %.0f |", name_of(static_cast<Way>(way)), rate(0).c_str(),
                  files.busy[way][off][0] / plan.file_rounds);
      std::printf(flows == 2 ? " %s |\n" : "\n", flows == 2 ? rate(1).c_str() : "");
    }
  }
  std::fflush(stdout);
}

// ---- the way through queue and device, and a system call that does nothing

// Frames that nobody wants, 64 for each call: made of a copy, queued, carried, dropped; the same
// processor does all of it.
double frame_us(const Place& place, size_t bytes) {
  constexpr int kBatch = 64, kBatches = 100;
  const End &from = place.wire().a, &to = place.wire().b;
  Fd fd = from.space.run([] { return Fd(::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, 0)); });
  sockaddr_ll name{};
  name.sll_family = AF_PACKET;
  name.sll_protocol = htons(0x88b6);
  name.sll_ifindex = static_cast<int>(from.ifindex);
  name.sll_halen = 6;
  std::memcpy(name.sll_addr, to.mac, 6);
  std::string frame(bytes, 'f');
  iovec piece{frame.data(), frame.size()};
  mmsghdr batch[kBatch]{};
  for (mmsghdr& one : batch) {
    one.msg_hdr.msg_name = &name;
    one.msg_hdr.msg_namelen = sizeof(name);
    one.msg_hdr.msg_iov = &piece;
    one.msg_hdr.msg_iovlen = 1;
  }
  double begin = now_us();
  for (int i = 0; i < kBatches; ++i)
    if (::sendmmsg(fd.value(), batch, kBatch, 0) != kBatch) die("sendmmsg");
  return (now_us() - begin) / (kBatch * kBatches);
}

void print_frames(const Place& place, const Plan& plan) {
  std::vector<double> small, large, call;
  for (int round = 0; round < plan.rounds; ++round) {
    small.push_back(frame_us(place, 64));
    large.push_back(frame_us(place, 1500));
    double begin = now_us();
    for (int i = 0; i < 20000; ++i) ::syscall(SYS_getppid);
    call.push_back((now_us() - begin) / 20000);
  }
  std::printf(
      "\nbare frames that are dropped on arrival, us for each (sendmmsg of 64): 64 B %s; 1500 B "
      "%s\na system call that does nothing, us: %s\n",
      spread(small, "%.2f").c_str(), spread(large, "%.2f").c_str(), spread(call, "%.3f").c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "latency") plan.latency = true;
    if (word == "files") plan.files = true;
    if (word == "calls") plan.calls = true;
    if (word == "frames") plan.frames = true;
    if (word == "--bytes" && i + 1 < argc) plan.bytes = static_cast<size_t>(std::atoi(argv[++i]));
    if (word == "--messages" && i + 1 < argc) plan.messages = std::atoi(argv[++i]);
    if (word == "--rounds" && i + 1 < argc) plan.rounds = std::atoi(argv[++i]);
    if (word == "--file-rounds" && i + 1 < argc) plan.file_rounds = std::atoi(argv[++i]);
  }
  if (!plan.latency && !plan.files && !plan.calls && !plan.frames)
    plan.latency = plan.files = plan.calls = plan.frames = true;
  ::signal(SIGCHLD, SIG_DFL);
  Module module;
  {
    Place place;
    if (!place.has_rxe()) std::printf("no soft-RoCE here\n");
    if (plan.calls) print_calls(place, plan);
    if (plan.frames) print_frames(place, plan);
    if (plan.latency) print_latency(place, plan);
    if (plan.files) print_files(place, plan, 1500);
  }
  if (plan.files) {
    Place place(9000);
    print_files(place, plan, 9000);
  }
  return 0;
}
