// Ways of two ends of a wire to talk, one beside the other, for the figures of
// tests/module/figures.cc: TCP, UDP, bare frames and SLP over packet sockets, SLP in the module,
// soft-RoCE, and memory that two processes share. Verifies what crosses; measures nothing itself.
#ifndef SLUICE_TESTS_MODULE_LINES_H_
#define SLUICE_TESTS_MODULE_LINES_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/module/wire.h"

namespace sluice::module_test {

// Ends the program with one line: a figure of something that failed is worth nothing.
[[noreturn]] void die(const char* what);

// Says and hears one message at a time.
struct Talker {
  virtual ~Talker() = default;
  // In the process that talks, once, before the first message; both ends at the same time.
  virtual void begin() {}
  virtual void say(const std::string& text) = 0;
  virtual std::string hear(size_t bytes) = 0;
  // After the last message: what the other end still waits for.
  virtual void end() {}
};

// Two ends, made in one process before it forks.
struct Line {
  std::unique_ptr<Talker> a, b;
};

enum Kind {
  kTcp,
  kUdp,
  kFrames,
  kPacket,
  kModule,
  kModuleSpin,
  kModuleRing,
  kModuleFour,
  kRxe,
  kRxeSpin,
  kMemory,
  kKinds
};
const char* name_of(Kind kind);

// Two namespaces with a wire, with IPv4 addresses; and a second wire in this namespace, between two
// soft-RoCE devices, whose two addresses find each other by the wire and not by the loopback: the
// devices of 6.1 live in the first namespace alone.
class Place {
 public:
  explicit Place(int mtu = 1500);
  ~Place();
  Place(const Place&) = delete;
  const Wire& wire() const { return wire_; }
  bool has_rxe() const { return has_rxe_; }
  // Checksums, scatter-gather, segmentation and GRO of all four interfaces.
  void offloads(bool on) const;

 private:
  Wire wire_;
  bool has_rxe_ = false;
};

// `port`: another for each line. False of usable(): not on this machine.
bool usable(Kind kind, const Place& place);
Line make_line(Kind kind, const Place& place, uint16_t port);
Line make_rxe(bool spin, size_t room);  // rxe_line.cc

Fd inet_socket(const End& end, int type);
// A connected pair of TCP sockets: [0] of wire.a, [1] of wire.b.
std::pair<Fd, Fd> tcp_pair(const Wire& wire, uint16_t port);
// A TCP stream of some 8 MB/s (what the guest's CPUs leave room for) from b to a, until it is
// stopped.
pid_t start_flow(const Wire& wire);
void stop_flow(pid_t flow);

void pin(int cpu);
double now_us();
double median(std::vector<double> values);

// System calls of this process since it was made, those of reading it left out.
class CallCounter {
 public:
  CallCounter();
  ~CallCounter();
  CallCounter(const CallCounter&) = delete;
  uint64_t count();

 private:
  int fd_;
  uint64_t own_ = 0;
};

}  // namespace sluice::module_test

#endif  // SLUICE_TESTS_MODULE_LINES_H_
