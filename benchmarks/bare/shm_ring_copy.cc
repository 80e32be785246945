// Question: how fast does a large message cross a shared-memory ring, by how
// many copies?
//
// --mode in: the sender copies from its private buffer into ring slots, the
//   receiver looks at the slots in place (one word of each cache line): one copy.
// --mode out: the bytes are in the ring already, the receiver copies them to its
//   private buffer: one copy.
// --mode both: copied in and copied out, what libraries do without a
//   single-copy mechanism: two copies.
// Both sides spin. Slots are 64 KiB: 8 of them stay in a core's L2.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <new>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"

namespace bare {
namespace {

constexpr size_t kSlotBytes = 64u << 10;
constexpr size_t kSlots = 8;
constexpr size_t kCacheLine = 64;

struct Ring {
  alignas(kCacheLine) std::atomic<uint64_t> filled{0};  // slots published since the start
  alignas(kCacheLine) std::atomic<uint64_t> freed{0};   // slots given back
  alignas(kCacheLine) std::atomic<uint64_t> go{0};      // messages that the receiver wants
  alignas(4096) unsigned char slots[kSlots][kSlotBytes];

  unsigned char* slot(uint64_t index) { return slots[index % kSlots]; }
};

void wait_until_at_least(const std::atomic<uint64_t>& counter, uint64_t value) {
  while (counter.load(std::memory_order_acquire) < value) {}
}

uint64_t slots_of(const Options& options) { return options.size / kSlotBytes; }

int produce(const Options& options, Ring& ring, PeerReport& report) {
  auto* payload = static_cast<unsigned char*>(map_private(options.size));
  const bool copies_in = options.mode != "out";
  const uint64_t per_message = slots_of(options);
  uint64_t published = 0;
  for (uint64_t message = 0; message < options.iterations; ++message) {
    const auto seed = static_cast<uint32_t>(message);
    fill_pattern(payload, options.size, seed);
    if (options.corrupt) flip_one_bit(payload, kSlotBytes);
    // Mode out: every slot holds the payload's first block, written before the clock starts
    // and not before the receiver has copied the last message's slots.
    wait_until_at_least(ring.freed, published);
    if (!copies_in)
      for (auto& slot : ring.slots) std::memcpy(slot, payload, kSlotBytes);
    ring.filled.fetch_add(1, std::memory_order_release);  // ready: see consume()
    ++published;
    wait_until_at_least(ring.go, message + 1);
    const double cpu_before = process_cpu_seconds();
    burn_ns(options.slow_ns);
    for (uint64_t i = 0; i < per_message; ++i, ++published) {
      if (published >= kSlots) wait_until_at_least(ring.freed, published - kSlots + 1);
      if (copies_in) std::memcpy(ring.slot(published), payload + i * kSlotBytes, kSlotBytes);
      ring.filled.store(published + 1, std::memory_order_release);
    }
    report.cpu_seconds += process_cpu_seconds() - cpu_before;
  }
  ring.filled.fetch_add(1, std::memory_order_release);  // the report is complete
  return 0;
}

// One word of each cache line: the least that proves the bytes are here.
uint32_t look_at(const unsigned char* slot) {
  uint32_t sum = 0;
  for (size_t at = 0; at < kSlotBytes; at += kCacheLine)
    sum += *reinterpret_cast<const volatile uint32_t*>(slot + at);
  return sum;
}

uint32_t expected_look(const Options& options, uint32_t seed) {
  uint32_t sum = 0;
  for (size_t at = 0; at < options.size; at += kCacheLine)
    sum += pattern_word(at / sizeof(uint32_t), seed);
  return sum;
}

// Takes one message; returns the sum of what it looked at (mode in).
uint32_t take_message(const Options& options, Ring& ring, unsigned char* destination,
                      uint64_t& taken) {
  uint32_t sum = 0;
  for (uint64_t i = 0; i < slots_of(options); ++i, ++taken) {
    wait_until_at_least(ring.filled, taken + 1);
    if (options.mode == "in")
      sum += look_at(ring.slot(taken));
    else
      std::memcpy(destination + i * kSlotBytes, ring.slot(taken), kSlotBytes);
    ring.freed.store(taken + 1, std::memory_order_release);
  }
  return sum;
}

uint64_t check_message(const Options& options, const unsigned char* destination, uint32_t seed,
                       uint32_t sum) {
  if (options.mode == "in") return sum != expected_look(options, seed) ? 1 : 0;
  if (options.mode == "both") return count_mismatches(destination, options.size, seed);
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < slots_of(options); ++i)
    wrong += count_mismatches(destination + i * kSlotBytes, kSlotBytes, seed);
  return wrong;
}

int consume(const Options& options, Ring& ring, PeerReport& report) {
  auto* destination = static_cast<unsigned char*>(map_private(options.size));
  Samples seconds;
  uint64_t wrong = 0, taken = 0;
  double total = 0, cpu = 0;
  for (uint64_t message = 0; message < options.iterations; ++message) {
    wait_until_at_least(ring.filled, taken + 1);  // the payload is ready
    ring.freed.store(++taken, std::memory_order_release);
    const double cpu_before = process_cpu_seconds();
    const uint64_t start = now_ns();
    ring.go.store(message + 1, std::memory_order_release);
    const uint32_t sum = take_message(options, ring, destination, taken);
    const double took = static_cast<double>(now_ns() - start) * 1e-9;
    cpu += process_cpu_seconds() - cpu_before;
    wrong += check_message(options, destination, static_cast<uint32_t>(message), sum);
    seconds.add(took);
    total += took;
  }
  wait_until_at_least(ring.filled, taken + 1);
  if (wrong != 0) return refuse(options, std::to_string(wrong) + " wrong words");
  seconds.sort();
  const double bytes = static_cast<double>(options.iterations * options.size);
  return JsonLine(options)
      .raw("seconds", seconds.json())
      .number("bytes_per_second", bytes / total)
      .number("cpu_seconds", cpu + report.cpu_seconds)
      .number("cpu_seconds_per_gb", (cpu + report.cpu_seconds) / (bytes * 1e-9))
      .print_verified();
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "shm_ring_copy";
  options.modes = {"in", "out", "both"};
  options.mode = "in";
  options.size = 64u << 20;
  options.iterations = 16;
  bare::parse_or_exit(options, argc, argv);
  if (options.size % bare::kSlotBytes != 0) {
    fprintf(stderr, "shm_ring_copy: --size must be a multiple of 65536\n");
    return bare::kExitUsage;
  }
  auto* ring = new (bare::map_shared(sizeof(bare::Ring))) bare::Ring;
  return bare::run_pair(
      options, [&](bare::PeerReport& report) { return bare::produce(options, *ring, report); },
      [&](bare::PeerReport& report) { return bare::consume(options, *ring, report); });
}
