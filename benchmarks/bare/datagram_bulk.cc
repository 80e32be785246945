// Messages against a counter in shared memory (see datagram_bulk.h).
#include "benchmarks/bare/datagram_bulk.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "benchmarks/bare/patience.h"
#include "benchmarks/bare/pattern.h"

namespace bare {
namespace {

// The sender is at most so far ahead: well inside the socket's buffer, and in the cache.
constexpr uint64_t kAhead = 2u << 20;

struct Shared {
  std::atomic<uint64_t> started{0};   // messages that the receiver waits for
  std::atomic<uint64_t> received{0};  // bytes of all messages
};

int send_messages(const Options& options, const DatagramEnds& ends, Shared& shared,
                  PeerReport& report) {
  auto* payload = static_cast<unsigned char*>(map_private(options.size));
  uint64_t before = 0;
  for (uint64_t message = 0; message < options.iterations; ++message) {
    fill_pattern(payload, options.size, static_cast<uint32_t>(message));
    if (options.corrupt) flip_one_bit(payload, options.size);
    while (shared.started.load() <= message) {}
    const double cpu_before = process_cpu_seconds();
    burn_ns(options.slow_ns);
    for (uint64_t sent = 0; sent < options.size;) {
      if (before + sent > shared.received.load(std::memory_order_relaxed) + kAhead) continue;
      sent += ends.send(payload + sent, options.size - sent);
    }
    before += options.size;
    // The report is complete before the last bytes are counted as received, or nearly so.
    report.cpu_seconds += process_cpu_seconds() - cpu_before;
  }
  return 0;
}

int receive_messages(const Options& options, const DatagramEnds& ends, Shared& shared,
                     const PeerReport& report) {
  auto* payload = static_cast<unsigned char*>(map_private(options.size));
  Samples seconds;
  uint64_t wrong = 0;
  double total = 0, cpu = 0;
  for (uint64_t message = 0; message < options.iterations; ++message) {
    const double cpu_before = process_cpu_seconds();
    const uint64_t start = now_ns();
    shared.started.store(message + 1);
    Patience patience(options.name.c_str());
    for (uint64_t got = 0; got < options.size;) {
      const size_t more = ends.receive(payload + got, options.size - got);
      if (more == 0) {
        patience.spin();
        continue;
      }
      patience = Patience(options.name.c_str());
      got += more;
      shared.received.store(message * options.size + got, std::memory_order_relaxed);
    }
    const double took = static_cast<double>(now_ns() - start) * 1e-9;
    cpu += process_cpu_seconds() - cpu_before;
    wrong += count_mismatches(payload, options.size, static_cast<uint32_t>(message));
    std::memset(payload, 0, options.size);
    seconds.add(took);
    total += took;
  }
  if (wrong != 0) return refuse(options, std::to_string(wrong) + " wrong words");
  return JsonLine(options).moved(seconds, total, cpu + report.cpu_seconds).print_verified();
}

}  // namespace

int datagram_bulk(const Options& options, const DatagramEnds& ends) {
  auto* shared = new (map_shared(sizeof(Shared))) Shared;
  return run_pair(
      options, [&](PeerReport& report) { return send_messages(options, ends, *shared, report); },
      [&](PeerReport& report) { return receive_messages(options, ends, *shared, report); });
}

}  // namespace bare
