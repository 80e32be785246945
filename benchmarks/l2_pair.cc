// sluice between two processes over each of its paths: the answer to the questions l2_latency and
// l2_bulk, beside bare/frame_pingpong, frame_bulk and udp_bulk, and to those of the kernel module.
// Modes shm_, lo_ (TCP over the loopback device) and rdma_ take no wire of benchmarks/wire.py: both
// ends in one network.
#include <atomic>
#include <cstring>
#include <string>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"
#include "benchmarks/library_ends.h"

namespace {

using namespace sluice;
using bench::Box;
using bench::later;
using bench::Side;

constexpr uint64_t kWarmUpRounds = 200;

// ---- ping-pong

int echo(const bare::Options& options, Side& side, bare::PeerReport& report) {
  Box in, out;
  Buffer next = side.buffer();
  for (uint64_t i = 0; i < kWarmUpRounds + options.iterations; ++i) {
    side.receive(std::move(next), in);
    side.until(in, i + 1);
    bare::burn_ns(options.slow_ns);
    Buffer got = std::move(in.last.buffers[0]);
    if (options.corrupt && i == kWarmUpRounds + options.iterations / 2)
      bare::flip_one_bit(got.bytes().data(), options.size);
    Tensor answer = std::move(got).freeze();
    if (i + 1 == kWarmUpRounds + options.iterations)
      report.cpu_seconds = bare::process_cpu_seconds();
    side.send(answer, out, Level::kSourceReusable);
    next = side.buffer();
  }
  side.until(out, kWarmUpRounds + options.iterations);
  return 0;
}

int measure_pingpong(const bare::Options& options, Side& side, const bare::PeerReport& report) {
  Box in, out;
  bare::Samples one_way_ns;
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < kWarmUpRounds + options.iterations; ++i) {
    Buffer payload = side.buffer();
    auto* words = reinterpret_cast<unsigned char*>(payload.bytes().data());
    bare::fill_pattern(words, options.size, static_cast<uint32_t>(i));
    words[0] = static_cast<unsigned char>(i * 7 + 1);
    Tensor tensor = std::move(payload).freeze();
    side.receive(side.buffer(), in);
    const uint64_t start = bare::now_ns();
    side.send(tensor, out, Level::kSourceReusable);
    side.until(in, i + 1);
    const uint64_t took = bare::now_ns() - start;
    if (i < kWarmUpRounds) continue;
    one_way_ns.add(static_cast<double>(took) / 2);
    wrong +=
        std::memcmp(in.last.buffers[0].bytes().data(), tensor.bytes().data(), options.size) != 0
            ? 1
            : 0;
  }
  if (wrong != 0) return bare::refuse(options, std::to_string(wrong) + " wrong payloads");
  one_way_ns.sort();
  return bare::JsonLine(options)
      .raw("one_way_ns", one_way_ns.json())
      .number("cpu_seconds", bare::process_cpu_seconds() + report.cpu_seconds)
      .print_verified();
}

// ---- bulk: message by message, each checked

// Messages that the far end has made: what it takes to make one is not timed.
using Made = std::atomic<uint64_t>;

int send_bulk(const bare::Options& options, Side& side, Made& made, bare::PeerReport& report) {
  Box go, out;
  side.size = 1;
  for (uint64_t i = 0; i < options.iterations; ++i) side.receive(side.buffer(), go);
  side.size = options.size;
  Buffer reused = side.buffer();
  for (uint64_t i = 0; i < options.iterations; ++i) {
    bare::fill_pattern(reused.bytes().data(), options.size, static_cast<uint32_t>(i));
    if (options.corrupt) bare::flip_one_bit(reused.bytes().data(), options.size);
    Tensor tensor = std::move(reused).freeze();
    made.store(i + 1);
    side.until(go, i + 1);
    const double before = bare::process_cpu_seconds();
    bare::burn_ns(options.slow_ns);
    side.send(tensor, out);
    side.until(out, i + 1);
    report.cpu_seconds += bare::process_cpu_seconds() - before;
    out.last = {};
    reused = std::move(tensor.try_thaw().value());
  }
  return 0;
}

int measure_bulk(const bare::Options& options, Side& side, const Made& made,
                 const bare::PeerReport& report) {
  Box in, out;
  bare::Samples seconds;
  uint64_t wrong = 0;
  double total = 0, cpu = 0;
  side.size = 1;
  Tensor go = side.buffer().freeze();
  side.size = options.size;
  Buffer into = side.buffer();
  for (uint64_t i = 0; i < options.iterations; ++i) {
    side.receive(std::move(into), in);
    while (made.load() <= i) {}
    const double cpu_before = bare::process_cpu_seconds();
    const uint64_t start = bare::now_ns();
    side.send(go, out);
    side.until(in, i + 1);
    const double took = static_cast<double>(bare::now_ns() - start) * 1e-9;
    cpu += bare::process_cpu_seconds() - cpu_before;
    into = std::move(in.last.buffers[0]);
    wrong += bare::count_mismatches(into.bytes().data(), options.size, static_cast<uint32_t>(i));
    std::memset(into.bytes().data(), 0, options.size);
    seconds.add(took);
    total += took;
  }
  if (wrong != 0) return bare::refuse(options, std::to_string(wrong) + " wrong words");
  return bare::JsonLine(options).moved(seconds, total, cpu + report.cpu_seconds).print_verified();
}

}  // namespace

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "l2_pair";
  for (const std::string& carrier : bench::carrier_names()) {
    for (const char* wait : {"spin", "sleep", "adaptive"})
      options.modes.push_back(carrier + "_" + wait);
    options.modes.push_back(carrier + "_bulk");
    options.modes.push_back(carrier + "_bulk_adaptive");
  }
  options.mode = "packet_spin";
  options.iterations = 10'000;
  bare::parse_or_exit(options, argc, argv);
  const bench::Way way = bench::way_of(options.mode);
  auto* made = new (bare::map_shared(sizeof(Made))) Made(0);
  if (options.mode.find("bulk") == std::string::npos) {
    return bench::run_ends(
        options, way,
        [&](Side& side, bare::PeerReport& report) { return echo(options, side, report); },
        [&](Side& side, const bare::PeerReport& report) {
          return measure_pingpong(options, side, report);
        });
  }
  return bench::run_ends(
      options, way,
      [&](Side& side, bare::PeerReport& report) { return send_bulk(options, side, *made, report); },
      [&](Side& side, const bare::PeerReport& report) {
        return measure_bulk(options, side, *made, report);
      });
}
