// Two processes that are joined by a path of the library, for the programs that send over each of
// them: which addresses they take, in which network, and how they wait. Must not know what is
// measured.
#ifndef SLUICE_BENCHMARKS_LIBRARY_ENDS_H_
#define SLUICE_BENCHMARKS_LIBRARY_ENDS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sluice/api/context.h>

#include "benchmarks/bare/program.h"
#include "benchmarks/bare/wire.h"

namespace bench {

// packet, xdp, udp, tcp and kmod need the wire of benchmarks/wire.py; shm and lo (TCP over the
// loopback device) have both ends in one network, and so has rdma, with the device of a guest
// (SLUICE_LAB_ADDRESS). kmod needs the kernel module.
enum class Carrier { kPacket, kUdp, kTcp, kShm, kLoopback, kModule, kRdma, kXdp };

struct Way {
  Carrier carrier = Carrier::kPacket;
  sluice::Waiting waiting = sluice::Waiting::kSpin;
};

// "packet", "udp", ... in the order of Carrier: what a mode begins with.
const std::vector<std::string>& carrier_names();
// Of a mode such as "packet_sleep" or "lo_bulk_adaptive"; what names no way to wait spins.
Way way_of(const std::string& mode);
bool has_wire(Carrier carrier);

// The value, or the process says what went wrong and ends with kExitFailed.
[[noreturn]] void give_up(const char* what, const sluice::Status& status);
template <typename T>
T must(sluice::Result<T> result, const char* what) {
  if (!result.ok()) give_up(what, result.status());
  return std::move(result).value();
}

// Keeps the last completion and counts them; one that failed ends the process.
class Box final : public sluice::CompletionSink {
 public:
  void on_completion(sluice::Completion&& completion) noexcept override;
  sluice::Completion last;
  uint64_t count = 0;
};

// Deadline of each operation: a benchmark that hangs is ended before by its own limit.
sluice::Instant later();

inline constexpr sluice::Tag kTag = 1;

// One end: a context, and the connection to the other. Made in the process that uses it.
struct Side {
  Side(const Way& way, bare::End end, uint64_t size);
  // Of `size` bytes.
  sluice::Buffer buffer();
  void receive(sluice::Buffer&& into, Box& box);
  void send(const sluice::Tensor& tensor, Box& box, sluice::Level level = sluice::Level::kPlaced);
  template <typename Done>
  void until(Done&& done) {
    if (!context->wait_until(done, later()).ok()) bare::die("waiting");
  }
  void until(const Box& box, uint64_t count) {
    until([&] { return box.count >= count; });
  }
  uint64_t size;
  std::unique_ptr<sluice::Context> context;
  sluice::Endpoint endpoint;
};

using Measured = std::function<int(Side&, bare::PeerReport&)>;

// Runs `far` in a process that listens and `near` in this one, which connects to it
// (bare::run_pair); returns the exit code. SLUICE_BENCH_COUNTERS in the environment: both print
// their counters on stderr in the end.
int run_ends(const bare::Options& options, const Way& way, const Measured& far,
             const Measured& near);

}  // namespace bench

#endif  // SLUICE_BENCHMARKS_LIBRARY_ENDS_H_
